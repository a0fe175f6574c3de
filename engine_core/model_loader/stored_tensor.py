"""Where a tensor lies in a checkpoint's file, as plain bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

FLOAT_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
BYTES = {"U8": torch.uint8}
TYPES = (
    FLOAT_TYPES
    | BYTES
    | {
        "I8": torch.int8,
        "I32": torch.int32,
        "I64": torch.int64,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }
)
"""Those that are read, by safetensors' names."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place, shape and type."""

    file: Path
    name: str
    """In the file."""
    shape: tuple[int, ...]
    type_name: str
    """Any of safetensors' types, or torch's name of another."""
    start: int
    """In bytes from the start of the file."""
    nbytes: int
    strides: tuple[int, ...] | None = None
    """In bytes, if its numbers do not follow each other in the order of their indices."""

    @property
    def dtype(self) -> torch.dtype | None:
        """None for an unsupported type."""
        return TYPES.get(self.type_name)
