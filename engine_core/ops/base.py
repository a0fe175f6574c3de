"""What models compute with, and the interface of a backend that computes it.

A model is written from the parts in ``layers``; when a part is loaded, it asks the backend for the op that computes it:
a computation with its weights. Symbols in shapes: M rows, K inputs, N outputs, T rows of a step, R of them that are
wanted, D head size, V vocabulary size. Widths are padded: hidden states have ``backend.padded(hidden_size)`` columns,
the last ones zero.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch

from engine_core.activation import Activation
from engine_core.attention.base import RotaryOp
from engine_core.distributed.collectives import TensorCollectives
from engine_core.forward_context import ForwardContext
from engine_core.weights.experts import ExpertsShape, ExpertsShard, ExpertWeights, QuantizedExpertWeights
from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight


class LinearOp(ABC):
    """y = x · Wᵀ + b."""

    in_features: int
    out_features: int
    masks_argmax: ClassVar[bool] = False
    """Whether ``greatest`` takes ``allowed``."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the weight and the bias as they are kept, packed and padded."""

    @abstractmethod
    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], times ``scale``, plus ``residual`` [M, N]; as ``x``, or in float32 if ``dtype`` is.

        ``residual`` may be columns of a wider tensor: its rows may lie apart. It may be overwritten. The result is
        ``into`` [M, N] if given, which may be such columns, too.
        """

    @abstractmethod
    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows [M, K] of the weight, for ``indices`` [M] int64: the embedding, where it is tied to the head."""

    def greatest(self, x: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """Of the outputs of ``x`` [M, K], in float32; ids are of those whose bits are set in ``allowed`` [M, ⌈N / 32⌉]
        int32, if given, as ``SamplingOps.mask`` leaves them.
        """
        assert allowed is None
        return greatest_of(self(x, dtype=torch.float32))


class Greatest(NamedTuple):
    """Where each of M rows is greatest, and how great it is there. A NaN is greater than any number."""

    ids: torch.Tensor
    """[M] int64: the column, the first of equals."""
    values: torch.Tensor
    """[M] float32: of all columns, also where ``ids`` are of some alone."""


def greatest_of(x: torch.Tensor) -> Greatest:
    """Of ``x`` [M, N] float32."""
    # On CPU numpy's is vectorized and torch's is not: 9 against 126 µs for a row of 151,936.
    ids = torch.from_numpy(x.numpy().argmax(axis=1)) if x.is_cpu else x.argmax(1)
    return Greatest(ids, x.gather(1, ids[:, None])[:, 0])


class GroupedLinearOp(Protocol):
    """G linear layers side by side, without biases."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, G, N] of ``x`` [M, G, K], whose rows and groups may lie apart."""


class Scoring(enum.IntEnum):
    """``RinglineScoring`` of kernels/cpu/interface.h: what becomes of a router's logits."""

    SOFTMAX = 0
    SIGMOID = 1


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router chooses experts."""

    top_k: int
    """Experts of a row."""
    scoring: Scoring = Scoring.SOFTMAX
    renormalize: bool = False
    """Whether the weights of a row's experts are divided by their sum."""
    scale: float = 1.0
    """The factor of the chosen experts' weights."""
    num_groups: int = 1
    """Groups of neighbouring experts (group-limited routing, https://arxiv.org/abs/2405.04434)."""
    topk_groups: int = 1
    """Groups whose experts may be chosen."""
    group_best: int = 1
    """A group's score is the sum of this many of its highest."""


@dataclass(frozen=True, slots=True)
class ExpertsSplit:
    """How the ranks of a stage share experts."""

    tp: TensorCollectives
    shards: tuple[ExpertsShard, ...]
    """What each rank has."""
    expert_parallel: bool
    """Whether ranks have whole experts."""

    @classmethod
    def of(cls, shape: ExpertsShape, tp: TensorCollectives, *, expert_parallel: bool) -> ExpertsSplit:
        return cls(tp, shape.shards(tp.size, expert_parallel=expert_parallel), expert_parallel)

    @property
    def own(self) -> ExpertsShard:
        """What this rank has."""
        return self.shards[self.tp.rank]

    def gather_inner(self, x: torch.Tensor, groups: int, padded: Callable[[int], int]) -> torch.Tensor:
        """[M, groups · I] of every rank's ``x`` [M, groups · its outputs of gate]; ``padded`` is the backend's."""
        return self.tp.all_gather(x, [padded(len(shard.inner)) for shard in self.shards], groups=groups)

    def gather_outputs(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[M · k, H] of ``x`` [M · k, H], a row from the rank that has its expert, of ``ids`` [M, k]."""
        owned = [shard.experts for shard in self.shards]
        return self.tp.gather_rows(x, ids.flatten(), owned, groups=ids.shape[1])


class ExpertsOp(ABC):
    """Experts whose outputs are rounded to the type of their input after the activation, and after they are multiplied
    by their weights; a row's are then summed in the order in which they are listed, in float32.
    """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the weights as they are kept."""

    @abstractmethod
    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """[M, H] of ``x`` [M, H]: experts ``ids`` [M, k] int32, times ``weights`` [M, k] float32, plus ``residual``.

        With a split all ranks make this call, with the same arguments but ``residual``, and each gets its own columns
        [M, H′] of the result, to which its own ``residual`` [M, H′] is added; with expert parallelism each gets all.
        ``residual`` may be columns of a wider tensor. Raises ``RankFailedError``.
        """


class UnloadedExperts(ExpertsOp):
    """Experts that are made without weights, and take them in the model's type."""

    @abstractmethod
    def load(self, experts: Iterable[ExpertWeights]) -> None:
        """Take the weights of all experts of this rank's shard, in ascending order and without padding."""


class NormOp(Protocol):
    """x / √(mean(x²) + ε) · w over the last dimension; a layer norm: (x − mean(x)) / √(variance(x) + ε) · w + b.

    The result is multiplied by a scale, where a norm has one.
    """

    @property
    def nbytes(self) -> int: ...

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        in_place: bool = False,
        over: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[T, W] of ``x`` [T, W], whose rows may lie apart, plus ``residual`` [T, W]; ``in_place`` overwrites ``x``.

        The root mean square is that of ``over`` [T, …], if given: rows of which ``x`` is a part.

        Or [T, G, W] of ``x`` [T, G, W] and ``residual`` [T, G, W]: each of the G groups of a row on its own.
        """


@dataclass(frozen=True, slots=True)
class HeadsShape:
    """Queries, keys and values of one row, and how they are rotated."""

    num_heads: int
    num_kv_heads: int
    """0: there are queries alone."""
    head_dim: int
    """Without padding."""
    rotary_dim: int
    """Elements of a head that are rotated: the first ones; 0 where nothing is rotated (NoPE)."""
    interleaved: bool = False
    """As in ``RopeParameters``."""


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights [D] float32 of the root mean square normalization of each head."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor | None
    eps: float

    def stacked(self, padding: int = 0) -> torch.Tensor:
        """[2 or 3, D + padding] float32, padded with zeros."""
        weights = [self.query, self.key] + ([] if self.value is None else [self.value])
        return torch.nn.functional.pad(torch.stack(weights), (0, padding))


class DecoderStack(Protocol):
    """Everything between a model's embedding and its head."""

    def __call__(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """[R, H] of the wanted rows of ``hidden`` [T, H], or [T, H] of all; valid until the next call."""


class OpsBackend(ABC):
    """Makes ops for one kind of device. Weights that are passed in may be overwritten later: they are copied."""

    batch_invariant: bool
    """Whether a row's bits are meant to be independent of the other rows and of the number of threads."""
    rank_invariant = False
    """Whether they are independent of the number of ranks that share a layer, too."""
    expands_experts = False
    """Whether experts are kept in the model's type where linear layers stay quantized."""

    def padded(self, width: int) -> int:
        """``width`` rounded up to what the kernels need; the columns beyond ``width`` mean nothing."""
        return width

    @abstractmethod
    def numerics(self) -> str:
        """What decides a result's bits, besides the processor's instruction set and the builds of torch and numpy."""

    def describe_layers(self) -> str:
        """What is special about the layers that were made, for a person. Raises ``ConfigError`` where an option turns
        out to be without effect.
        """
        return ""

    @abstractmethod
    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearOp:
        """A linear layer of ``weight`` [N, K] and ``bias`` [N], padded."""

    def quantized_linear(
        self,
        kept: QuantFormat,
        outputs: int,
        inputs: int,
        dtype: torch.dtype,
        parts: Iterable[QuantizedWeight],
        bias: torch.Tensor | None = None,
        input_order: torch.Tensor | None = None,
    ) -> LinearOp:
        """A linear layer of a weight [``outputs``, ``inputs``] without padding, whose rows come in ``parts``.

        ``dtype`` is the model's. Column i of the weight is for input ``input_order[i]``, [K] int64, if given. Unless a
        backend has kernels for that, the weight is expanded.
        """
        weight = torch.cat([part.dequantized().to(dtype) for part in parts])
        return self.linear(weight if input_order is None else weight[:, input_order.argsort()], bias)

    @abstractmethod
    def grouped_linear(self, weight: torch.Tensor) -> GroupedLinearOp:
        """Linear layers of ``weight`` [G, N, K], padded."""

    @abstractmethod
    def route(
        self,
        logits: torch.Tensor,
        routing: Routing,
        correction_bias: torch.Tensor | None,
        expert_scales: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts [M, k] int32 and their weights [M, k] float32 for ``logits`` [M, E] float32, the highest score first.

        ``correction_bias`` and ``expert_scales`` are [E] float32, as in ``RouterTensors``.
        """

    @abstractmethod
    def experts(self, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None = None) -> UnloadedExperts:
        """Experts without weights, which will be of type ``dtype``; this rank's part of them with a ``split``."""

    def quantized_experts(
        self,
        shape: ExpertsShape,
        gate_up: QuantFormat,
        down: QuantFormat,
        dtype: torch.dtype,
        experts: Iterable[QuantizedExpertWeights],
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        """Experts whose gates and ups are kept as ``gate_up`` says, and their downs as ``down``.

        ``dtype`` is the model's; ``experts`` are as for ``UnloadedExperts.load``. Unless a backend has kernels for
        that, the weights are expanded.
        """
        op = self.experts(shape, dtype, split)
        op.load(expert.expanded(dtype) for expert in experts)
        return op

    @abstractmethod
    def norm(
        self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, width: int, scale: float = 1.0
    ) -> NormOp:
        """Normalization with ``weight`` [padded W] float32; the mean is over ``width`` elements.

        By the root mean square, or, with a ``bias`` [padded W] float32, by mean and deviation. ``scale`` is a factor of
        what is put out, the residual included.
        """

    @abstractmethod
    def rotary(self, shape: HeadsShape, norms: HeadNorms | None) -> RotaryOp:
        """Normalization of heads, where there are ``norms``, and rotation."""

    # What is computed of each number alone: by torch here, by a kernel where a backend has one.

    def activate(self, x: torch.Tensor, activation: Activation, up: torch.Tensor | None = None) -> torch.Tensor:
        """f(x) [T, I] of ``x`` [T, I], times ``up`` [T, I] if given; the rows of both may lie apart."""
        y = activation(x.float())
        return (y if up is None else y * up.float()).to(x.dtype)

    def act_and_mul(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """f(gate) · up [T, I] of ``gate_up`` [T, 2 · I]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.activate(gate, activation, up)

    def add_gated(self, x: torch.Tensor, logits: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual`` + σ(``logits``) · ``x``, all [T, H] but for ``logits`` [T, 1] float32."""
        return (residual.float() + logits.sigmoid() * x.float()).to(x.dtype)

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """``rows`` [R] int64 of ``x`` [T, N], whose rows may lie apart; ``x`` itself where all are wanted (None)."""
        return x if rows is None else x.index_select(0, rows)

    def captured(self, stack: DecoderStack) -> DecoderStack:
        """A stack that computes the same as ``stack``, made of this backend's ops, with less work in between."""
        return stack
