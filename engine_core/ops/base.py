"""The ops that models compute with, and the interface of the backends that make them.

A model is composed of the parts in ``layers``; when a part is loaded, it asks the backend for its op: a computation
with its weights. Symbols in shapes: M rows, K inputs, N outputs, T rows of a step, R wanted rows of them, D head size,
V vocabulary size. Widths are padded: hidden states have ``backend.padded(hidden_size)`` columns, the last ones zero.
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
from engine_core.ops.lora import ExpertsLoRA, LoRAOps
from engine_core.ops.states import StateOps
from engine_core.ops.streams import StreamOps
from engine_core.ops.torch_lora import TorchLoRAOps
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
        """Bytes of the packed and padded weight and bias."""

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
        """[M, N]: y of ``x`` [M, K], times ``scale``, plus ``residual`` [M, N]; ``dtype``: float32 or None (as ``x``).

        ``residual`` may be overwritten. The result is written to ``into`` [M, N] if given. Both may be columns of a
        wider tensor (strided rows).
        """

    @abstractmethod
    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows [M, K] of the weight at ``indices`` [M] int64: the embedding, where it is tied to the head."""

    def greatest(self, x: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """The argmax of the outputs of ``x`` [M, K], in float32. If ``allowed`` [M, ⌈N / 32⌉] int32 is given, ids are
        chosen among the outputs whose bits are set, as by ``SamplingOps.mask``.
        """
        assert allowed is None
        return greatest_of(self(x, dtype=torch.float32))


class Greatest(NamedTuple):
    """Argmax and maximum of each of M rows. NaN is greater than any number."""

    ids: torch.Tensor
    """[M] int64: the column, the first of equals."""
    values: torch.Tensor
    """[M] float32: the maximum of all columns, even where ``ids`` are limited to some."""


def greatest_of(x: torch.Tensor) -> Greatest:
    """Argmax and maximum of ``x`` [M, N] float32."""
    # On a CPU numpy's argmax is vectorized, torch's is not: 9 against 126 µs for a row of 151,936.
    ids = torch.from_numpy(x.numpy().argmax(axis=1)) if x.is_cpu else x.argmax(1)
    return Greatest(ids, x.gather(1, ids[:, None])[:, 0])


class GroupedLinearOp(Protocol):
    """G linear layers side by side, without biases."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, G, N] of ``x`` [M, G, K]; its rows and groups may be strided."""


class Scoring(enum.IntEnum):
    """The function from a router's logits to scores: ``RinglineScoring`` of kernels/cpu/interface.h."""

    SOFTMAX = 0
    SIGMOID = 1


@dataclass(frozen=True, slots=True)
class Routing:
    """How a router chooses experts."""

    top_k: int
    """Experts per row."""
    scoring: Scoring = Scoring.SOFTMAX
    renormalize: bool = False
    """Whether the weights of a row's experts are divided by their sum."""
    sum_offset: float = 1e-20
    """Added to that sum."""
    scale: float = 1.0
    """Factor of the chosen experts' weights."""
    num_groups: int = 1
    """Groups of neighbouring experts (group-limited routing, https://arxiv.org/abs/2405.04434)."""
    topk_groups: int = 1
    """Groups whose experts may be chosen."""
    group_best: int = 1
    """A group's score is the sum of its ``group_best`` highest scores."""


@dataclass(frozen=True, slots=True)
class ExpertsSplit:
    """How the ranks of a stage share experts."""

    tp: TensorCollectives
    shards: tuple[ExpertsShard, ...]
    """By rank."""
    expert_parallel: bool
    """Whether ranks have whole experts."""

    @classmethod
    def of(cls, shape: ExpertsShape, tp: TensorCollectives, *, expert_parallel: bool) -> ExpertsSplit:
        return cls(tp, shape.shards(tp.size, expert_parallel=expert_parallel), expert_parallel)

    @property
    def own(self) -> ExpertsShard:
        """The shard of this rank."""
        return self.shards[self.tp.rank]

    def gather_inner(self, x: torch.Tensor, groups: int, padded: Callable[[int], int]) -> torch.Tensor:
        """[M, groups · I] of all ranks' ``x`` [M, groups · gate outputs of the rank]; ``padded``: the backend's."""
        return self.tp.all_gather(x, [padded(len(shard.inner)) for shard in self.shards], groups=groups)

    def gather_outputs(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[M · k, H]: each row of ``x`` [M · k, H] from the rank that has its expert in ``ids`` [M, k]."""
        owned = [shard.experts for shard in self.shards]
        return self.tp.gather_rows(x, ids.flatten(), owned, groups=ids.shape[1])


class ExpertsOp(ABC):
    """The experts of a layer. Values are rounded to the input's type after the activation, and after the product with
    the expert's weight; a row's outputs are then summed in the order of its ids, in float32.
    """

    adapted: ExpertsLoRA | None = None
    """What adapters add to the products, if the backend ``adapts_experts``; None: nothing. Set before any call."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the packed weights."""

    @abstractmethod
    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """[M, H] of ``x`` [M, H]: experts ``ids`` [M, k] int32, times ``weights`` [M, k] float32, plus ``residual``.

        With a split all ranks make this call with the same ``x``, ``ids`` and ``weights``. Each gets its columns
        [M, H′] of the result, plus its ``residual`` [M, H′]; with expert parallelism each gets all columns.
        ``residual`` may be columns of a wider tensor. Raises ``RankFailedError``.
        """


class UnloadedExperts(ExpertsOp):
    """Experts made without weights, to be loaded in the model's type."""

    @abstractmethod
    def load(self, experts: Iterable[ExpertWeights]) -> None:
        """Load the weights of all experts of this rank's shard, in ascending order and without padding."""


class NormOp(Protocol):
    """RMS norm: x / √(mean(x²) + ε) · w; layer norm: (x − mean(x)) / √(variance(x) + ε) · w + b.

    Means are over the last dimension. The result is multiplied by the norm's scale, if any.
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
        """[T, W]: the norm of ``x`` [T, W], plus ``residual`` [T, W]; ``in_place`` overwrites ``x``.

        The rows of ``x`` may be strided. The root mean square is taken over ``over`` [T, …], if given: wider rows
        that contain those of ``x``. With ``x`` and ``residual`` [T, G, W], each group of a row is normalized alone.
        """


@dataclass(frozen=True, slots=True)
class HeadsShape:
    """Query, key and value heads of a row, and how they are rotated."""

    num_heads: int
    num_kv_heads: int
    """0: only queries."""
    head_dim: int
    """Without padding."""
    rotary_dim: int
    """The first elements of a head, which are rotated; 0: none (NoPE)."""
    interleaved: bool = False
    """As in ``RopeParameters``."""


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norm weights [D] float32 of the heads."""

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
        """[R, H] for the wanted rows of ``hidden`` [T, H], or [T, H] for all; valid until the next call."""


class OpsBackend(ABC):
    """Makes ops for one kind of device. Weights are copied: callers may overwrite them later."""

    batch_invariant: bool
    """Whether a row's bits should be independent of the other rows and the number of threads."""
    rank_invariant = False
    """Whether a row's bits are also independent of the number of ranks that share a layer."""
    expands_experts = False
    """Whether experts are kept in the model's type where linear layers stay quantized."""
    adapts_experts = True
    """Whether experts take ``ExpertsOp.adapted``."""
    adapts_streams = True
    """Whether ``stream_ops`` take ``adapted``."""

    def padded(self, width: int) -> int:
        """``width`` rounded up to what the kernels need; columns beyond ``width`` carry no data."""
        return width

    @abstractmethod
    def numerics(self) -> str:
        """What decides a result's bits, besides the processor's instruction set and the builds of torch and numpy."""

    def describe_layers(self) -> str:
        """What is special about the layers that were made, for a person. Raises ``ConfigError`` if an option had no
        effect.
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

        ``dtype`` is the model's. Column i of the weight is for input ``input_order[i]``, [K] int64, if given. A
        backend without kernels for the format expands the weight.
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
        """Experts for weights of type ``dtype``, still to be loaded; with a ``split``, this rank's shard."""

    def quantized_experts(
        self,
        shape: ExpertsShape,
        gate_up: QuantFormat,
        down: QuantFormat,
        dtype: torch.dtype,
        experts: Iterable[QuantizedExpertWeights],
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        """Experts whose gates and ups stay in format ``gate_up``, and their downs in format ``down``.

        ``dtype`` is the model's; ``experts`` are as for ``UnloadedExperts.load``. A backend without kernels for the
        formats expands the weights.
        """
        op = self.experts(shape, dtype, split)
        op.load(expert.expanded(shape, dtype) for expert in experts)
        return op

    @abstractmethod
    def norm(
        self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, width: int, scale: float = 1.0
    ) -> NormOp:
        """A norm with ``weight`` [padded W] float32; the mean is over ``width`` elements.

        With a ``bias`` [padded W] float32 a layer norm, otherwise an RMS norm. ``scale`` multiplies the output,
        the residual included.
        """

    @abstractmethod
    def rotary(self, shape: HeadsShape, norms: HeadNorms | None) -> RotaryOp:
        """Rotation of heads, normalized first if there are ``norms``."""

    def stream_ops(self) -> StreamOps:
        """Ops on several residual streams per row, and the cutoff of sparse activations."""
        return StreamOps()

    def state_ops(self) -> StateOps:
        """Ops of layers that keep a state per sequence."""
        return StateOps()

    def lora_ops(self) -> LoRAOps:
        """Ops of one model's layers that add what adapters add."""
        return TorchLoRAOps()

    # Elementwise ops: by torch here, by a kernel where a backend has one.

    def activate(self, x: torch.Tensor, activation: Activation, up: torch.Tensor | None = None) -> torch.Tensor:
        """f(x) [T, I] of ``x`` [T, I], times ``up`` [T, I] if given; the rows of both may be strided."""
        y = activation(x.float())
        return (y if up is None else y * up.float()).to(x.dtype)

    def act_and_mul(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """f(gate) · up [T, I] of ``gate_up`` [T, 2 · I]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.activate(gate, activation, up)

    def add_gated(self, x: torch.Tensor, logits: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """``residual``, if any, + σ(``logits``) · ``x``, all [T, H] but for ``logits`` [T, G] float32, one for each of
        G equal groups of columns.
        """
        gated = (logits.sigmoid()[..., None] * x.float().view(*logits.shape, -1)).flatten(1)
        return (gated if residual is None else residual.float() + gated).to(x.dtype)

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """``rows`` [R] int64 of ``x`` [T, N], whose rows may be strided; None: all rows, ``x`` itself."""
        return x if rows is None else x.index_select(0, rows)

    def kept(self, x: torch.Tensor) -> torch.Tensor:
        """``x``, a residual stream, as it is now: a copy, where linear layers overwrite their ``residual``."""
        return x

    def captured(self, stack: DecoderStack) -> DecoderStack:
        """A stack equivalent to ``stack``, which consists of this backend's ops, with less overhead between ops."""
        return stack
