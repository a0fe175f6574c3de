"""Ops by plain torch: the reference in tests, and the fallback where no native kernels could be built.

A row's bits may depend on the other rows: torch chooses its kernels by the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from engine_core.activation import Activation
from engine_core.attention.base import Angles, RotaryOp
from engine_core.ops.base import (
    ExpertsSplit,
    GroupedLinearOp,
    HeadNorms,
    HeadsShape,
    LinearOp,
    NormOp,
    OpsBackend,
    Routing,
    Scoring,
    UnloadedExperts,
)
from engine_core.ops.torch_lora import TorchExpertsLoRA
from engine_core.weights.experts import ExpertsShape, ExpertWeights


class TorchLinear(LinearOp):
    """The weight [N, K] stays row-major."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight = weight.clone()
        self.bias = None if bias is None else bias.clone()

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        y = torch.nn.functional.linear(x, self.weight, self.bias).to(dtype or x.dtype)
        y = y if scale == 1.0 else y.mul_(scale)
        y = y if residual is None else residual + y
        return y if into is None else into.copy_(y)

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(indices, self.weight)


class TorchNorm:
    """Computed in float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, scale: float) -> None:
        self.weight = weight.clone()
        self.bias = None if bias is None else bias.clone()
        self.eps = eps
        self.scale = scale

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        in_place: bool = False,
        over: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if over is not None:
            y = x.float() * torch.rsqrt(over.float().square().mean(-1, keepdim=True) + self.eps) * self.weight
        elif self.bias is None:
            y = torch.nn.functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)
        else:
            y = torch.nn.functional.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps)
        if residual is not None:
            y = residual.float() + y
        y = y if self.scale == 1.0 else y * self.scale
        return x.copy_(y) if in_place else y.to(x.dtype)


class TorchRotary:
    """Normalization and rotation of heads, computed in float32."""

    def __init__(self, shape: HeadsShape, norms: HeadNorms | None) -> None:
        self._shape = shape
        self._norms = norms

    @property
    def nbytes(self) -> int:
        return 0 if self._norms is None else self._norms.stacked().nbytes

    def __call__(self, heads: torch.Tensor, angles: Angles | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape, norms = self._shape, self._norms
        counts = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        query, key, value = torch.split(heads.float(), counts, dim=1)
        if norms is not None:
            query, key = self._normalize(query, norms.query), self._normalize(key, norms.key)
            value = value if norms.value is None else self._normalize(value, norms.value)
        if angles is not None:
            query, key = (rotate(x, angles, interleaved=shape.interleaved) for x in (query, key))
            query = query if angles.query_scales is None else query * angles.query_scales
        return query.to(heads.dtype), key.to(heads.dtype), value.to(heads.dtype)

    def _normalize(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert self._norms is not None
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self._norms.eps)


def rotate(x: torch.Tensor, angles: Angles, *, interleaved: bool = False) -> torch.Tensor:
    """[T, heads, D] float32: ``x`` with each pair of a head rotated by its angle, then the elements not rotated."""
    count = 2 * angles.cos.shape[-1]
    turned, rest = torch.split(x.float(), [count, x.shape[-1] - count], dim=-1)
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    halves = first * angles.cos - second * angles.sin, second * angles.cos + first * angles.sin
    rotated = torch.stack(halves, dim=-1).flatten(-2) if interleaved else torch.cat(halves, dim=-1)
    return torch.cat([rotated, rest], dim=-1)


class TorchGroupedLinear:
    """The weight [G, N, K] is not packed."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.contiguous().clone()

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("mgk,gnk->mgn", x, self.weight)


class TorchExperts(UnloadedExperts):
    """One expert after the other."""

    def __init__(self, shape: ExpertsShape, split: ExpertsSplit | None = None) -> None:
        self._shape = shape
        self._split = split
        self._shard = shape.whole if split is None else split.own
        self._weights: list[tuple[torch.Tensor, ...]] = []
        self._biases: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None] = []

    @property
    def nbytes(self) -> int:
        biases = (each for of_expert in self._biases if of_expert is not None for each in of_expert)
        return sum(each.nbytes for of_expert in self._weights for each in of_expert) + sum(
            each.nbytes for each in biases
        )

    def load(self, experts: Iterable[ExpertWeights]) -> None:
        for weights in experts:
            tensors, biases = tuple(tensor.clone() for tensor in weights.tensors), weights.biases
            if biases is not None:
                of_gate, of_up, of_down = (bias.to(tensors[0].dtype, copy=True) for bias in biases)
                biases = of_gate, of_up, of_down
            self._biases.append(biases)
            self._weights.append(tensors)

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        shard, split, top_k = self._shard, self._split, ids.shape[1]
        inner = x.new_zeros(*ids.shape, len(shard.inner))
        outputs = x.new_zeros(*ids.shape, len(shard.hidden))
        chosen = sorted(set(ids.flatten().tolist()) & set(shard.experts))
        pairs = {expert: torch.nonzero(ids == expert, as_tuple=True) for expert in chosen}
        for expert, (rows, places) in pairs.items():
            weighed = self._weighed(x[rows], weights[rows, places])
            inner[rows, places] = self._expand(expert, weighed, self._added(0, expert, weighed, rows, len(x)))
        if split is not None and not split.expert_parallel:
            inner = split.gather_inner(inner.flatten(1), top_k, int).view(*ids.shape, self._shape.intermediate_size)
        for expert, (rows, places) in pairs.items():
            activated = inner[rows, places]
            computed = self._reduce(expert, activated, self._added(1, expert, activated, rows, len(x)))
            if not self._shape.weighs_inputs:
                computed = (computed.float() * weights[rows, places, None]).to(x.dtype)
            outputs[rows, places] = computed
        if split is not None and split.expert_parallel:
            outputs = split.gather_outputs(outputs.flatten(0, 1), ids).view(outputs.shape)
        total = outputs[:, 0].float()
        for place in range(1, top_k):
            total = total + outputs[:, place].float()
        return (total if residual is None else total + residual.float()).to(x.dtype)

    def _weighed(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (x.float() * weights[:, None]).to(x.dtype) if self._shape.weighs_inputs else x

    def _added(self, product: int, expert: int, x: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
        """[n, N] float32: what adapters add to the outputs of ``product`` 0 or 1 for ``x`` [n, K]."""
        shard = self._shard
        outputs = len(shard.hidden) if product else self._shape.num_expanding * len(shard.inner)
        added = x.new_zeros(len(x), outputs, dtype=torch.float32)
        if self.adapted is not None:
            assert isinstance(self.adapted, TorchExpertsLoRA)
            self.adapted(self.adapted.layer + product, shard.experts.index(expert), x, added, rows, count)
        return added

    def _expand(self, expert: int, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        index = self._shard.experts.index(expert)
        (*gate, up, _), biases = self._weights[index], self._biases[index]
        gate_bias, up_bias, _ = (None, None, None) if biases is None else biases
        shape, linear = self._shape, torch.nn.functional.linear
        if not shape.gated:
            return shape.activation(linear(x, up).float() + added).to(x.dtype)
        gated, inner = linear(x, gate[0], gate_bias).float(), linear(x, up, up_bias).float()
        gated, inner = (y + some for y, some in zip((gated, inner), added.chunk(2, dim=1), strict=True))
        if shape.activation is Activation.CLAMPED_SWIGLU:
            gated = gated.clamp(max=shape.swiglu_limit)
            inner = (inner.clamp(-shape.swiglu_limit, shape.swiglu_limit) + 1) * gated
            inner = inner * torch.sigmoid(shape.swiglu_alpha * gated)
        else:
            inner = shape.activation(gated) * inner
        return inner.to(x.dtype)

    def _reduce(self, expert: int, inner: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        index = self._shard.experts.index(expert)
        down, biases = self._weights[index][-1], self._biases[index]
        computed = torch.nn.functional.linear(inner, down, None if biases is None else biases[2])
        return (computed.float() + added).to(inner.dtype)


class TorchBackend(OpsBackend):
    """Computes everything by torch."""

    batch_invariant = False

    def numerics(self) -> str:
        return "torch"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearOp:
        return TorchLinear(weight, bias)

    def grouped_linear(self, weight: torch.Tensor) -> GroupedLinearOp:
        return TorchGroupedLinear(weight)

    def route(
        self,
        logits: torch.Tensor,
        routing: Routing,
        correction_bias: torch.Tensor | None,
        expert_scales: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = logits.softmax(-1) if routing.scoring is Scoring.SOFTMAX else logits.sigmoid()
        choice = scores if correction_bias is None else scores + correction_bias
        grouped = routing.topk_groups < routing.num_groups
        if routing.scoring is Scoring.SIGMOID and correction_bias is None and not grouped:
            choice = logits  # large ones have a sigmoid of 1
        if grouped:
            by_group = choice.view(len(choice), routing.num_groups, -1)
            of_groups = _greatest(by_group, routing.group_best).values.sum(-1)
            left_out = torch.ones_like(of_groups, dtype=torch.bool)
            left_out.scatter_(1, _greatest(of_groups, routing.topk_groups).indices, False)
            choice = by_group.masked_fill(left_out[..., None], -torch.inf).flatten(1)
        ids = _greatest(choice, routing.top_k).indices
        weights = scores.gather(1, ids)
        if routing.renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + routing.sum_offset)
        weights = weights * routing.scale
        return ids.int(), weights if expert_scales is None else weights * expert_scales[ids]

    def experts(self, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None = None) -> UnloadedExperts:
        return TorchExperts(shape, split)

    def norm(
        self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, width: int, scale: float = 1.0
    ) -> NormOp:
        return TorchNorm(weight, bias, eps, scale)

    def rotary(self, shape: HeadsShape, norms: HeadNorms | None) -> RotaryOp:
        return TorchRotary(shape, norms)


def _greatest(x: torch.Tensor, count: int) -> torch.return_types.sort:
    """Like ``topk``, but stable: of equal values the first comes first."""
    values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
    return torch.return_types.sort((values[..., :count], indices[..., :count]))
