"""Replacements within transformers modules: the engine's linear layers, embeddings and attention, and small parts that
load the remaining weights.

Symbols in shapes: T rows of a step, Hq query heads, Hkv key/value heads, D head size, K inputs, N outputs. The rows of
all sequences lie side by side in one row of transformers' batch, so tensors there begin with [1, T].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from engine_core.activation import NAMES, Activation
from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions
from engine_core.errors import UnsupportedModelError
from engine_core.layers.embedding import VocabParallelEmbedding
from engine_core.layers.linear import ColumnParallelLinear, ParallelLMHead
from engine_core.layers.part import Part
from engine_core.ops.base import Greatest, OpsBackend
from engine_core.weights.source import Weights

IMPLEMENTATION = "ringline"
"""The engine's attention among transformers' attention functions. No mask function has this name, so no mask is
made."""
_ATTENTION = "ringline_attention"
"""The attribute of a transformers module that computes its attention."""


class AttentionCall(Protocol):
    """Computes attention for a transformers module."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """[1, T, Hq, Dv] for ``query`` [1, Hq, T, D], ``key`` [1, Hkv, T, D] and ``value`` [1, Hkv, T, Dv]."""


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Run the call that ``set_attention`` gave ``module``, in the form of transformers' ``AttentionInterface``."""
    call: AttentionCall = getattr(module, _ATTENTION)
    return call(query, key, value, attention_mask, options), None


AttentionInterface.register(IMPLEMENTATION, attend)


def set_attention(module: nn.Module, call: AttentionCall) -> None:
    """Have ``call`` compute the attention of ``module``."""
    setattr(module, _ATTENTION, call)


class StepAttention:
    """The current step's caches and metadata, for the attention of all layers."""

    def __init__(self, backend: AttentionBackend, dtype: torch.dtype) -> None:
        self.backend = backend
        self.dtype = dtype
        self._layers: dict[int, tuple[torch.Tensor, AttentionMetadata]] = {}

    @contextmanager
    def step(self, layers: dict[int, tuple[torch.Tensor, AttentionMetadata]]) -> Iterator[None]:
        """Attend over these caches, by layer index, within the context."""
        self._layers = layers
        try:
            yield
        finally:
            self._layers = {}

    def of_layer(self, index: int) -> tuple[torch.Tensor, AttentionMetadata]:
        return self._layers[index]


class LayerAttention:
    """Attention of one layer over its KV cache, called by a transformers module."""

    def __init__(self, index: int, head_dim: int, options: AttentionOptions, step: StepAttention) -> None:
        """``head_dim`` is the cache's; heads are padded to it with zeros."""
        self._index = index
        self._head_dim = head_dim
        self._options = options
        self._step = step

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """``options`` are ignored: the trial recorded them."""
        kv_cache, metadata = self._step.of_layer(self._index)
        _, num_heads, num_rows, _ = query.shape
        attended = self._step.backend.forward(
            self._rows(query), self._rows(key), self._rows(value), kv_cache, metadata, self._options
        )
        return attended.view(1, num_rows, num_heads, -1)[..., : value.shape[-1]]

    def _rows(self, heads: torch.Tensor) -> torch.Tensor:
        """[T, heads, D of the cache] from ``heads`` [1, heads, T, D]."""
        return widened(heads[0].transpose(0, 1).to(self._step.dtype), self._head_dim)


def widened(x: torch.Tensor, width: int) -> torch.Tensor:
    """``x`` padded with zeros to ``width`` columns."""
    return x if x.shape[-1] == width else nn.functional.pad(x, (0, width - x.shape[-1]))


class Projection(nn.Module):
    """Replaces ``nn.Linear``."""

    def __init__(self, part: ColumnParallelLinear) -> None:
        super().__init__()
        self._part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, N] for ``x`` […, K]. On the meta device, raises ``UnsupportedModelError`` for rows of another width."""
        shape = self._part.shape
        if x.is_meta:
            if x.shape[-1] != shape.inputs.count:
                raise UnsupportedModelError(
                    f"{shape.names[0]} takes {shape.inputs.count} numbers and is given {x.shape[-1]}: the sizes in "
                    "config.json contradict each other"
                )
            return x.new_empty(*x.shape[:-1], shape.outputs.count)
        rows = widened(x.reshape(-1, shape.inputs.count), self._part.op.in_features)
        return self._compute(rows).view(*x.shape[:-1], -1)

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        return self._part(x)


class Head(Projection):
    """Replaces the ``nn.Linear`` that computes logits; in float32."""

    def __init__(self, part: ParallelLMHead) -> None:
        super().__init__(part)
        self._head = part

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        return self._head.logits(x)

    @property
    def masks_argmax(self) -> bool:
        return self._head.masks_argmax

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """Like ``LanguageModel.greatest``, for ``hidden`` [R, K]."""
        return self._head.greatest(widened(hidden, self._head.op.in_features), allowed)


class Embedding(nn.Module):
    """Replaces ``nn.Embedding``."""

    def __init__(self, part: VocabParallelEmbedding, width: int) -> None:
        super().__init__()
        self._part = part
        self._width = width

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """[…, H] for ``indices`` […] int64."""
        if indices.is_meta:
            return torch.empty(*indices.shape, self._width, device=indices.device)
        rows = self._part(indices.reshape(-1))[:, : self._width]
        return rows.reshape(*indices.shape, self._width)


class ChangedEmbedding(nn.Module):
    """Replaces a subclass of ``nn.Embedding`` that changes the rows it looks up, as by a factor.

    The subclass still does so: it looks rows 0, 1, … up in a table of the wanted rows.
    """

    def __init__(self, rows: Embedding, changing: nn.Embedding) -> None:
        super().__init__()
        self._rows = rows
        self._changing = [changing]  # in a list, so that its weight is not registered here

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """[1, T, H] for ``indices`` [1, T] int64."""
        rows = self._rows(indices)
        places = torch.arange(rows.shape[1], device=indices.device)[None]
        changed: torch.Tensor = torch.func.functional_call(self._changing[0], {"weight": rows[0]}, (places,))
        return changed


class Activated(nn.Module):
    """Replaces an activation with the engine's.

    torch computes the last elements of a tensor, or of a thread's share, in another loop, which gives other bits.
    """

    def __init__(self, activation: Activation, backend: OpsBackend) -> None:
        super().__init__()
        self._activation = activation
        self._backend = backend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), element by element."""
        if x.is_meta:
            return x.new_empty(x.shape)
        width = x.shape[-1]
        rows = widened(x.reshape(-1, width), self._backend.padded(width)).contiguous()
        return self._backend.activate(rows, self._activation)[:, :width].reshape(x.shape)


ACTIVATIONS = {type(ACT2FN[name]): activation for name, activation in NAMES.items()}
"""The engine's activation for each activation class of transformers."""


@dataclass
class GivenOutput(BaseModelOutputWithPastAndCrossAttentions):
    """With the fields of models with experts or shared caches, too."""

    router_logits: tuple[torch.Tensor, ...] | None = None
    shared_kv_states: Any = None


class GivenHidden(nn.Module):
    """Replaces everything but the head: returns the given hidden states."""

    def forward(self, *arguments: Any, inputs_embeds: torch.Tensor, **options: Any) -> GivenOutput:
        """``inputs_embeds`` [1, T, H] are the final hidden states."""
        return GivenOutput(last_hidden_state=inputs_embeds)


class RemainingTensors(Part):
    """Weights of a module that is not replaced: a norm, an activation, a gate."""

    def __init__(self, module: nn.Module, names: Mapping[str, str], exact: Collection[str] = ()) -> None:
        """``names``: the checkpoint's names by the module's; those in ``exact`` are read in float32."""
        self._module = module
        self._names = names
        self._exact = exact

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(self._tensor(own).shape) for own, name in self._names.items()}

    def load(self, weights: Weights) -> None:
        for own, name in self._names.items():
            is_exact = name in self._exact or self._tensor(own).dtype == torch.float32
            tensor = weights.take_float32(name) if is_exact else weights.take(name).clone()
            if own in dict(self._module.named_buffers(recurse=False)):
                self._module.register_buffer(own, tensor)
            else:
                self._module.register_parameter(own, nn.Parameter(tensor, requires_grad=False))

    @property
    def nbytes(self) -> int:
        return sum(self._tensor(own).nbytes for own in self._names)

    def _tensor(self, own: str) -> torch.Tensor:
        tensor: torch.Tensor = getattr(self._module, own)
        return tensor


def replaced(module: nn.Module, path: Sequence[str], new: nn.Module) -> nn.Module:
    """A copy of ``module`` that shares everything with it except the submodule at ``path``, which is ``new``."""
    if not path:
        return new
    changed = module.__class__.__new__(module.__class__)
    changed.__dict__ = module.__dict__ | {"_modules": dict(module._modules)}
    changed._modules[path[0]] = replaced(module.get_submodule(path[0]), path[1:], new)
    return changed
