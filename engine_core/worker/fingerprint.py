"""The numerics fingerprint: equal where the same request is computed to the same bits."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_core.loading.checkpoint import Checkpoint
from engine_core.loading.stored import find_tensors

_SAMPLES = 16
_SAMPLE_BYTES = 64
_INSTRUCTION_SETS = ("avx", "amx", "fma", "f16c", "sse4", "asimd", "sve", "bf16", "i8mm")


def numerics_fingerprint(checkpoint: Checkpoint, device: Sequence[str], attention: str, layers: str) -> str:
    """A digest, 32 hex digits, of all that decides a result's bits.

    Covers what the device, the attention backend and the layers say of their numerics, the instruction set and the
    builds of torch and numpy (which draws on CPU), the dtype and the quantization, the model's configuration and its
    weights. The number of threads and the batch are not in it: they do not change a result.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"ring numerics")
    for part in (
        *device,
        torch.__version__,
        torch.__config__.show(),
        np.__version__,
        attention,
        layers,
        str(checkpoint.quantization),
        checkpoint.spec.architecture,
        str(checkpoint.dtype),
        (checkpoint.path / "config.json").read_text(),
    ):
        _add(digest, part.encode())
    if checkpoint.load_format == "dummy":
        _add(digest, b"dummy %d" % checkpoint.seed)
    else:
        for path in sorted({tensor.file for tensor in find_tensors(checkpoint.path).values()}):
            _add_weights(digest, path)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, part: bytes) -> None:
    """Length first, so that neighbouring parts cannot be mistaken for each other."""
    digest.update(struct.pack("<Q", len(part)))
    digest.update(part)


def _add_weights(digest: hashlib.blake2b, path: Path) -> None:
    """The header of a safetensors file (names, types, shapes) and bytes from 16 places of every tensor.

    Any training changes nearly every weight, so samples tell checkpoints apart without reading all of them.
    """
    with path.open("rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = file.read(header_size)
        _add(digest, header)
        for name, entry in sorted(json.loads(header).items()):
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            for sample in range(_SAMPLES):
                offset = start + (end - start) * sample // _SAMPLES
                file.seek(8 + header_size + offset)
                _add(digest, file.read(min(_SAMPLE_BYTES, end - offset)))


def cpu_numerics() -> list[str]:
    """What loops and kernels on this processor choose by."""
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
