"""Parts of towers that encode pictures: convolutions, and vectors and tables that are learned as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine_core.layers.part import Part
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.weights.features import Features
from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A convolution in two dimensions with square kernels."""

    inputs: int
    """Channels, like ``outputs``."""
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    """Zeros on each side."""
    bias: bool = False

    def length(self, side: int) -> int:
        """Outputs along a side of ``side`` inputs."""
        return (side + 2 * self.padding - self.kernel) // self.stride + 1


class Convolution(Part):
    """A convolution as a linear layer of patches; never quantized. Channels are the last dimension."""

    _op: LinearOp

    def __init__(self, name: str, shape: ConvolutionShape, backend: OpsBackend) -> None:
        self.shape = shape
        self._name = name
        self._backend = backend
        self._is_of_pixels = shape.kernel == shape.stride > 1
        taps = shape.kernel**2
        # patches that do not overlap are taken from inputs without padding, such as pixels
        self._patch = Features(1, taps * shape.inputs) if self._is_of_pixels else Features(taps, shape.inputs)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        shape = self.shape
        wanted: dict[str, tuple[int, ...]] = {
            f"{self._name}.weight": (shape.outputs, shape.inputs, shape.kernel, shape.kernel)
        }
        if shape.bias:
            wanted[f"{self._name}.bias"] = (shape.outputs,)
        return wanted

    def load(self, weights: Weights) -> None:
        outputs = Features(1, self.shape.outputs)
        bias = None
        if self.shape.bias:
            bias = outputs.pad(weights.take(f"{self._name}.bias").clone(), 0, self._backend)
        weight = weights.take(f"{self._name}.weight").permute(0, 2, 3, 1).flatten(1)
        padded = self._patch.pad(outputs.pad(weight, 0, self._backend), 1, self._backend)
        self._op = self._backend.linear(padded.contiguous(), bias)

    @property
    def nbytes(self) -> int:
        return self._op.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[h, w, outputs, padded] of ``x`` [H, W, inputs], padded unless patches do not overlap."""
        height, width = (self.shape.length(side) for side in x.shape[:2])
        patches = self._whole_patches(x) if self._is_of_pixels else self._overlapping_patches(x, height, width)
        return self._op(self._patch_padded(patches.view(height * width, -1))).view(height, width, -1)

    def _patch_padded(self, patches: torch.Tensor) -> torch.Tensor:
        return self._patch.pad(patches, 1, self._backend) if self._is_of_pixels else patches

    def _whole_patches(self, x: torch.Tensor) -> torch.Tensor:
        side = self.shape.kernel
        height, width = x.shape[0] // side, x.shape[1] // side
        cut = x[: height * side, : width * side].view(height, side, width, side, -1)
        return cut.transpose(1, 2).reshape(height * width, -1)

    def _overlapping_patches(self, x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        shape = self.shape
        x = torch.nn.functional.pad(x, (0, 0, *[shape.padding] * 4))
        reach = [shape.stride * (count - 1) + 1 for count in (height, width)]
        taps = [
            x[top : top + reach[0] : shape.stride, left : left + reach[1] : shape.stride]
            for top in range(shape.kernel)
            for left in range(shape.kernel)
        ]
        return torch.cat(taps, dim=2)


class LearnedTensors(Part):
    """Vectors and tables that are learned as they are: embeddings of positions, separators."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], backend: OpsBackend) -> None:
        """``shapes`` by name; the last dimension of each is padded."""
        self._shapes = dict(shapes)
        self._backend = backend
        self._loaded: dict[str, torch.Tensor] = {}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    def load(self, weights: Weights) -> None:
        for name, shape in self._shapes.items():
            self._loaded[name] = Features(1, shape[-1]).pad(weights.take(name).clone(), len(shape) - 1, self._backend)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._loaded.values())

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor, padded."""
        return self._loaded[name]
