"""The numerics digest: equal where the same request is computed to the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_core.model_loader.digest import digest_of

_INSTRUCTION_SETS = ("avx", "amx", "fma", "f16c", "sse4", "asimd", "sve", "bf16", "i8mm")


def numerics_digest(model_digest: str, dtype: torch.dtype, device: Sequence[str], attention: str, layers: str) -> str:
    """A digest, 32 hex digits, of all that decides a result's bits.

    Covers the model, its number type, what the device, the attention backend and the layers say of their numerics, and
    the builds of torch and numpy (which samples on CPU). The number of threads and the batch are not in it: they do not
    change a result.
    """
    libraries = (torch.__version__, torch.__config__.show(), np.__version__)
    return digest_of(model_digest, str(dtype), *device, attention, layers, *libraries)


def cpu_numerics() -> list[str]:
    """What decides which loops and kernels run on this processor."""
    return [*_instruction_sets(), torch.backends.cpu.get_cpu_capability(), *_extensions_of_numpy()]


def _instruction_sets() -> list[str]:
    """What this processor can do, by the kernel's names, as far as matrix kernels choose by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return sorted({flag for flag in flags.partition(":")[2].split() if flag.startswith(_INSTRUCTION_SETS)})


def _extensions_of_numpy() -> list[str]:
    """The instruction sets that numpy's loops choose among, as far as this processor has them."""
    configuration: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    extensions: list[str] = configuration["SIMD Extensions"].get("found", [])
    return extensions
