"""Quantized checkpoints whose layers each have a scheme, which describes how the layer is stored, or none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from typing import Protocol

import torch

from engine_core.quantization.base import QuantizationConfig, QuantMethod
from engine_core.quantization.packing import FLOATS
from engine_core.quantization.stored import StoredMethod
from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights


class TensorInfo(Protocol):
    """A tensor's description in a file's header."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype | None:
        """None for a type that no model takes."""


_OF_ACTIVATIONS = (
    ".input_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
)
"""Endings of unused scales: inputs are not rounded, nor are keys and values by the checkpoint's scales."""
Tensors = Mapping[str, TensorInfo]
"""All tensors of a checkpoint by name; empty with dummy weights."""


class Scheme(ABC):
    """How the weight [N, K] of a layer is stored."""

    has_zero_biases = False
    """Whether tools write a bias for every layer, of zeros where the model has none."""

    @abstractmethod
    def format(self, inputs: int) -> QuantFormat:
        """The format in which the weight is kept in memory."""

    @abstractmethod
    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the layer with prefix ``name``, without a bias."""

    @abstractmethod
    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        """As ``StoredMethod.read``."""

    def input_order(self, name: str, inputs: int, weights: Weights) -> torch.Tensor | None:
        """As ``StoredMethod.input_order``."""
        return None


class SchemesConfig(QuantizationConfig):
    """Each layer has a scheme, or none."""

    def __init__(self) -> None:
        self._method = SchemesMethod(self)

    @abstractmethod
    def scheme(self, name: str) -> Scheme | None:
        """The scheme of the layer with prefix ``name``; None: it is not quantized."""

    def method(self, names: tuple[str, ...]) -> QuantMethod:
        return self._method

    def is_redundant(self, name: str) -> bool:
        return name.endswith(_OF_ACTIVATIONS)

    def must_be_zero(self, name: str) -> bool:
        layer = name.removesuffix(".bias")
        scheme = None if layer == name else self.scheme(layer)
        return scheme is not None and scheme.has_zero_biases


class SchemesMethod(StoredMethod):
    """Reads each layer as its scheme says."""

    def __init__(self, config: SchemesConfig) -> None:
        self._scheme = cache(config.scheme)  # it may match many patterns

    def format(self, name: str, inputs: int) -> QuantFormat | None:
        scheme = self._scheme(name)
        return None if scheme is None else scheme.format(inputs)

    def tensors_of(self, piece: TensorRows, inputs: int) -> dict[str, tuple[int, ...]]:
        if (scheme := self._scheme(piece.name)) is None:
            return super().tensors_of(piece, inputs)
        return scheme.tensors(piece.name, piece.count, inputs)

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        scheme = self._scheme(piece.name)
        assert scheme is not None
        return scheme.read(piece, inputs, weights)

    def input_order(self, name: str, inputs: int, weights: Weights) -> torch.Tensor | None:
        scheme = self._scheme(name)
        assert scheme is not None
        return scheme.input_order(name, inputs, weights)


def scale_dtype(tensors: Tensors, ending: str | tuple[str, ...], otherwise: torch.dtype = torch.float16) -> torch.dtype:
    """A type that holds all scales (tensors with this ``ending``); ``otherwise`` if there are none."""
    dtypes = {tensor.dtype for name, tensor in tensors.items() if name.endswith(ending)}
    return (
        reduce(torch.promote_types, (dtype for dtype in FLOATS if dtype in dtypes)) if dtypes & {*FLOATS} else otherwise
    )


def is_listed(name: str, listed: tuple[str, ...]) -> bool:
    """Whether ``listed`` has a sequence of whole parts of ``name``, between dots."""
    return any(f".{each}." in f".{name}." for each in listed)
