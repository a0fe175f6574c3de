"""A vision module of transformers with the engine's layers in it: linear layers, activations, patch embeddings and
attention. What remains of the module, such as norms and the order of the layers, is computed as transformers does.

Symbols in shapes: B pictures or windows of equal size, Hq heads, Hkv key/value heads, N places that attend to each
other, D head size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig
from transformers.activations import QuickGELUActivation

from engine_core.activation import Activation
from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.part import Part
from engine_core.layers.part_factory import PartFactory
from engine_core.models.encoding import count_rows
from engine_core.models.fallback.assembly import parameters_without_memory
from engine_core.models.fallback.modules import ACTIVATIONS, Activated, Projection, RemainingTensors, widened
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.weights.features import Features
from engine_core.weights.source import Weights

IMPLEMENTATION = "ringline_vision"
"""The tower's attention among transformers' attention functions. No mask function has this name, so no mask is made."""
_CONVOLUTIONS = nn.Conv2d, nn.Conv3d
_MIXING = (nn.modules.conv._ConvNd, nn.RNNBase, nn.modules.batchnorm._NormBase, nn.MultiheadAttention)
"""Modules that compute with weights in ways of their own."""
_TILE = 1024
"""Queries that are computed together on a CPU, whether an encoding stops behind them or not: 16,384 would take seconds.
"""

Renames = Callable[[str], str]


def build_module(make: Callable[[], nn.Module], parts: PartFactory) -> nn.Module:
    """What ``make`` makes: parameters on the meta device in the model's type, computed buffers on its device.

    Raises ``CheckpointError`` if transformers cannot make it.
    """
    try:
        with parameters_without_memory(parts.dtype), torch.device(parts.device):
            module = make()
    except Exception as error:  # whatever a class raises that a configuration's values do not fit
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise CheckpointError(f"vision_config: no tower can be made of it: {reason}") from error
    return module.train(False)


def configured(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of ``config`` that has modules attend by ``attend``."""
    own = copy.deepcopy(config)
    own._attn_implementation = IMPLEMENTATION
    return own


def put_in_parts(module: nn.Module, parts: PartFactory, stored: Renames) -> None:
    """Replace layers of ``module`` and submodules by parts of ``parts``, and have the rest loaded, too.

    ``stored``: the checkpoint's name of a submodule, from its path. Raises ``UnsupportedModelError``.
    """
    for path, each in list(module.named_modules()):
        if (new := _replacement(stored(path), each, parts)) is not None:
            module.set_submodule(path, new)
            continue
        if isinstance(each, _MIXING):
            raise UnsupportedModelError(f"{path} is a {type(each).__name__}, which the engine cannot compute")
        if names := _own_tensors(stored(path), each):
            parts.parts.append(RemainingTensors(each, names))


def _replacement(name: str, module: nn.Module, parts: PartFactory) -> nn.Module | None:
    """The engine's layer in place of ``module``, which a checkpoint calls ``name``; None: the module stays."""
    if type(module) is nn.Linear:
        outputs = Features(1, module.out_features, fixed=True)
        return Projection(parts.linear(name, module.in_features, outputs, bias=module.bias is not None))
    if isinstance(module, _CONVOLUTIONS):
        part = PatchEmbedding(name, module, parts.backend)
        parts.parts.append(part)
        return Patches(part, parts.dtype)
    if isinstance(module, nn.GELU):
        return Activated(Activation.GELU_TANH if module.approximate == "tanh" else Activation.GELU, parts.backend)
    if isinstance(module, QuickGELUActivation):
        return QuickGelu(parts.backend)
    activation = ACTIVATIONS.get(type(module))
    return None if activation is None else Activated(activation, parts.backend)


def _own_tensors(name: str, module: nn.Module) -> dict[str, str]:
    """The checkpoint's names of the tensors directly in ``module``, by the module's."""
    saved = {own for own in module.state_dict() if "." not in own}
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return {own: f"{name}.{own}" for own, _ in tensors if own in saved}


class QuickGelu(nn.Module):
    """Replaces transformers' activation of that name: x · σ(1.702 x)."""

    def __init__(self, backend: OpsBackend) -> None:
        super().__init__()
        self._sigmoid = Activated(Activation.SIGMOID, backend)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Element by element."""
        gate: torch.Tensor = self._sigmoid(1.702 * x)
        return x * gate


class PatchEmbedding(Part):
    """A convolution whose patches do not overlap, which is a linear layer of each patch."""

    op: LinearOp

    def __init__(self, name: str, convolution: nn.Conv2d | nn.Conv3d, backend: OpsBackend) -> None:
        """Raises ``UnsupportedModelError`` for any other convolution."""
        plain = convolution.groups == 1 and set(convolution.dilation) == {1} and _padding(convolution) == {0}
        if convolution.kernel_size != convolution.stride or not plain:
            raise UnsupportedModelError(
                f"{name} is a convolution with kernel {convolution.kernel_size}, stride {convolution.stride}, padding "
                f"{convolution.padding}, dilation {convolution.dilation} and {convolution.groups} groups: expected "
                "patches that lie side by side"
            )
        self._name = name
        self._backend = backend
        self._shape = tuple(convolution.weight.shape)
        self._has_bias = convolution.bias is not None
        self.kernel = convolution.kernel_size

    @property
    def inputs(self) -> int:
        """Numbers in a patch."""
        return math.prod(self._shape[1:])

    def tensors(self) -> dict[str, tuple[int, ...]]:
        bias = {f"{self._name}.bias": self._shape[:1]} if self._has_bias else {}
        return {f"{self._name}.weight": self._shape, **bias}

    def load(self, weights: Weights) -> None:
        bias = weights.take(f"{self._name}.bias").clone() if self._has_bias else None
        weight = weights.take(f"{self._name}.weight").reshape(self._shape[0], -1)
        self.op = self._backend.linear(widened(weight, self._backend.padded(self.inputs)), bias)

    @property
    def nbytes(self) -> int:
        return self.op.nbytes

    def __call__(self, patches: torch.Tensor) -> torch.Tensor:
        """[P, outputs] for ``patches`` [P, inputs], each laid out as the weight."""
        return self.op(widened(patches, self.op.in_features))


def _padding(convolution: nn.Conv2d | nn.Conv3d) -> set[int]:
    padding = convolution.padding
    return set(padding) if isinstance(padding, tuple) else {0 if padding == "valid" else 1}


class Patches(nn.Module):
    """Replaces such a convolution."""

    def __init__(self, part: PatchEmbedding, dtype: torch.dtype) -> None:
        super().__init__()
        self._part = part
        self._dtype = dtype

    @property
    def weight(self) -> torch.Tensor:
        """Of the model's type, which is all that modules ask it for."""
        return torch.empty(0, dtype=self._dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, outputs, …] for ``x`` [B, channels, …]; sides beyond the last whole patch are left out."""
        kernel = self._part.kernel
        counts = [side // size for side, size in zip(x.shape[2:], kernel, strict=True)]
        for dim, (count, size) in enumerate(zip(counts, kernel, strict=True), start=2):
            x = x.narrow(dim, 0, count * size)
        pairs = [each for pair in zip(counts, kernel, strict=True) for each in pair]
        axes = range(2, 2 + len(pairs), 2)
        patches = x.reshape(*x.shape[:2], *pairs).permute(0, *axes, 1, *(axis + 1 for axis in axes))
        rows = self._part(patches.reshape(-1, self._part.inputs))
        return rows.view(len(x), *counts, -1).movedim(-1, 1)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """[B, N, Hq, D] for ``query`` [B, Hq, N, D], ``key`` and ``value`` [B, Hkv, N, D], in the form of transformers'
    ``AttentionInterface``. All places of one of B see each other, but for ``attention_mask``.
    """
    return attention(query, key, value, attention_mask, scaling).transpose(1, 2), None


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """[B, Hq, N, D]; memory grows with N, not N². ``mask``: True, or what is added to logits, [B, 1 or Hq, N, N].

    torch tiles it by sizes alone. On CPU it is computed in float32, which is as fast: with types of 16 bits, some
    processors pack keys or not by the number of threads, which gives other bits.
    """
    dtype, width = query.dtype, value.shape[-1]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    widest = max(query.shape[-1], width)
    exact = dtype if query.is_cuda else torch.float32
    query, key, value = (widened(each.to(exact), widest) for each in (query, key, value))
    if key.shape[1] != query.shape[1]:
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(exact)
    alone = query.shape[0] == query.shape[1] == 1  # torch may have several threads share one product
    if alone:
        query, key, value = (each.expand(-1, 2, -1, -1) for each in (query, key, value))
    tiles = []
    for first in range(0, query.shape[2], tile := query.shape[2] if query.is_cuda else _TILE):
        rows = query[:, :, first : first + tile]
        seen = mask if mask is None or mask.shape[-2] == 1 else mask[..., first : first + tile, :]
        attended = nn.functional.scaled_dot_product_attention(rows, key, value, seen, scale=scale)
        tiles.append(attended[:, : 1 if alone else None, :, :width].to(dtype))
        count_rows(len(query) * rows.shape[2])
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=2)


AttentionInterface.register(IMPLEMENTATION, attend)
