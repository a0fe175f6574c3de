"""Weights rounded as llama.cpp rounds them, by its own library: to compare what is lost at the same number of bits."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import torch

from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.quantization.base import QuantMethod, Unquantized, take_bias, take_weight
from engine_core.weights.features import LinearShape
from engine_core.weights.source import Weights


class GgmlLibrary:
    """``libggml-base.so``, which the package llama-cpp-python has in ``llama_cpp/lib``."""

    def __init__(self, path: Path) -> None:
        self._quantize = ctypes.CDLL(str(path)).ggml_quantize_chunk
        self._quantize.restype = ctypes.c_size_t
        self._quantize.argtypes = (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 3,
            ctypes.c_void_p,
        )

    def rounded(self, weight: torch.Tensor, kind: gguf.GGMLQuantizationType) -> torch.Tensor:
        """``weight`` [N, K] after rounding, float32. Blocks go on in the next row where they do not divide K."""
        block, size = gguf.GGML_QUANT_SIZES[kind]
        numbers = weight.float().flatten()
        numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % block)).contiguous()
        packed = torch.empty(len(numbers) // block * size, dtype=torch.uint8)
        self._quantize(int(kind), numbers.data_ptr(), packed.data_ptr(), 0, 1, len(numbers), None)
        expanded = torch.from_numpy(gguf.quants.dequantize(packed.numpy(), kind))
        return expanded[: weight.numel()].view_as(weight)


class GgmlRounded(QuantMethod):
    """Linear layers and the head, of that type of GGUF all of them."""

    def __init__(self, library: GgmlLibrary, kind: gguf.GGMLQuantizationType) -> None:
        self._library = library
        self._kind = kind

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        return Unquantized().weight_bytes(shape, itemsize)

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        bias = take_bias(shape, weights, backend)
        weight = take_weight(shape, weights, backend)
        return backend.linear(self._library.rounded(weight, self._kind).to(weight.dtype), bias)
