"""The native kernels of states, for every instruction set of this machine: right beside torch; and for each row the
same bits, and the same states, whatever the chunks, the batch, the threads and the slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

from engine_core.forward_context import ForwardContext
from engine_core.kernels.library import Kernels, load_kernels
from engine_core.kv_cache_interface import NO_STATE, RecurrentSpec, ShortConvSpec, StateSpec
from engine_core.ops.base import DecoderStack
from engine_core.ops.kernel_graph import KernelGraph
from engine_core.ops.native import NativeBackend
from engine_core.ops.native_states import NativeStateOps
from engine_core.ops.states import RecurrenceParameters, StateOps
from engine_core.states.base import LayerState, StateCacheSpec, StateMetadata

from .experts import numbers

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ROWS, SLOTS = 70, 12
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SAVES = ((1, 5), (1, 6), (30, 7), (31, 8), (32, 9), (33, 1), (ROWS - 1, 3), (ROWS, 4))
"""Further (rows, slot) that a sequence saves, which starts from slot 1 and ends in slot 2."""


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    size = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    return {"rtol": size, "atol": size}


def strided(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """[rows, …] of wider rows."""
    rows, width = shape[0], math.prod(shape[1:])
    return numbers(rows, width + 48, dtype=dtype, seed=seed)[:, 16 : 16 + width].unflatten(1, shape[1:])


@dataclass(frozen=True, slots=True)
class Convolution:
    """A short convolution of ``ROWS`` rows."""

    taps: int
    channels: int
    silu: bool = True
    gated: bool = False

    @property
    def spec(self) -> StateSpec:
        return ShortConvSpec(self.channels, self.taps - 1)

    def __call__(
        self, ops: StateOps, dtype: torch.dtype, rows: torch.Tensor, state: LayerState, metadata: StateMetadata
    ) -> torch.Tensor:
        x, gate, output_gate = (strided(ROWS, self.channels, dtype=dtype, seed=seed)[rows] for seed in range(3))
        weight, bias = (
            numbers(*s, dtype=torch.float32, seed=3) for s in ((self.taps, self.channels), (self.channels,))
        )
        if not self.gated:
            return ops.short_convolution(x, weight, bias, state, metadata, silu=self.silu)
        return ops.short_convolution(
            x, weight, None, state, metadata, silu=self.silu, gate=gate, output_gate=output_gate
        )


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A recurrence of ``ROWS`` rows."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    delta: bool
    wide: bool = False
    """Whether decays and updates are float32."""

    @property
    def spec(self) -> StateSpec:
        return RecurrentSpec(self.key_heads, self.heads, self.key_dim, self.value_dim, 1)

    def __call__(
        self, ops: StateOps, dtype: torch.dtype, rows: torch.Tensor, state: LayerState, metadata: StateMetadata
    ) -> torch.Tensor:
        keys = self.key_heads * self.key_dim
        mixed = strided(ROWS, 2 * keys + self.heads * self.value_dim, dtype=dtype, seed=0)[rows]
        query, key, value = mixed.split([keys, keys, self.heads * self.value_dim], 1)
        gates = strided(ROWS, 2 * self.heads, dtype=torch.float32 if self.wide else dtype, seed=1)[rows]
        decay, update = gates.chunk(2, 1)
        parameters = RecurrenceParameters(
            -numbers(self.heads, dtype=torch.float32, seed=2).exp(),
            numbers(self.heads, dtype=torch.float32, seed=3),
            None if self.delta else numbers(self.heads, dtype=torch.float32, seed=4),
            query_scale=self.key_dim**-0.5,
            normalize_eps=1e-6 if self.delta else None,
            step_limits=(0.0, math.inf) if self.delta else (0.1, 1.5),
        )
        shape = (self.key_heads, self.key_dim)
        return ops.recurrence(
            query.unflatten(1, shape),
            key.unflatten(1, shape) if self.delta else key.unflatten(1, shape) * 0.25,
            value.unflatten(1, (self.heads, self.value_dim)),
            decay,
            update if self.delta else None,
            parameters,
            state,
            metadata,
        )


Op = Convolution | Recurrence
OPS: dict[str, Op] = {
    "taps 2": Convolution(2, 16, silu=False),
    "taps 3, gated": Convolution(3, 272, silu=False, gated=True),
    "taps 4": Convolution(4, 304),
    "taps 8": Convolution(8, 32, gated=True),
    "delta": Recurrence(2, 4, 32, 128, delta=True),
    "delta, odd": Recurrence(1, 1, 16, 240, delta=True, wide=True),
    "mamba": Recurrence(1, 3, 48, 64, delta=False, wide=True),
    "mamba, narrow": Recurrence(2, 2, 16, 16, delta=False),
}
each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


def filled(op: Op, dtype: torch.dtype) -> LayerState:
    [layer] = StateCacheSpec((op.spec,), dtype).allocate(SLOTS, torch.device("cpu"))
    layer.conv.copy_(numbers(*layer.conv.shape, dtype=dtype, seed=20))
    if layer.recurrent is not None:
        layer.recurrent.copy_(numbers(*layer.recurrent.shape, dtype=torch.float32, seed=21))
    return layer


def kept(op: Op, state: LayerState) -> torch.Tensor:
    """[slots, …] of what the op keeps."""
    kept = state.conv if isinstance(op, Convolution) else state.recurrent
    assert kept is not None
    return kept


def run(
    op: Op, ops: StateOps, dtype: torch.dtype, metadata: StateMetadata, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs, and the slots after them."""
    state = filled(op, dtype)
    output = op(ops, dtype, torch.arange(ROWS) if rows is None else rows, state, metadata)
    return output, kept(op, state)


@pytest.mark.parametrize("dtype", DTYPES)
@each_op
def test_beside_torch(kernels: Kernels, op: Op, dtype: torch.dtype) -> None:
    """Also which slots are written, and which stay."""
    metadata = StateMetadata.of_sequences(
        [3, 40, 1, 26], [1, 2, 0, NO_STATE], [1, 4, 0, 5], [(), [(7, 6), (8, 7)], (), ()]
    )
    outputs, slots = run(op, NativeStateOps(kernels), dtype, metadata)
    expected, expected_slots = run(op, StateOps(), dtype, metadata)
    assert outputs.dtype == expected.dtype
    assert torch.allclose(outputs.float(), expected.float(), **tolerance(dtype))
    assert torch.allclose(slots.float(), expected_slots.float(), rtol=1e-4, atol=2e-5)
    untouched = [2, 3, 8, 9, 10, 11]
    assert torch.equal(slots[untouched], kept(op, filled(op, dtype))[untouched])


@pytest.mark.parametrize("dtype", DTYPES)
@each_op
def test_bits_do_not_depend_on_chunks(kernels: Kernels, op: Op, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    ops = NativeStateOps(kernels)
    whole, expected = run(op, ops, dtype, StateMetadata.of_sequences([ROWS], [1], [2], [SAVES]))
    for sizes in ([1] * ROWS, [2, 1, 31, 36], [32, 32, 6], [33, 37], [ROWS - 1, 1]):
        state, parts, source, first = filled(op, dtype), [], 1, 0
        for size in sizes:
            last = first + size == ROWS
            saves = [(after - first, slot) for after, slot in SAVES if first < after <= first + size and after < ROWS]
            saves += [(size, slot) for after, slot in SAVES if last and after == ROWS]
            target = 2 if last else 10  # in place from the second chunk on
            metadata = StateMetadata.of_sequences([size], [source], [target], [saves])
            parts.append(op(ops, dtype, torch.arange(first, first + size), state, metadata))
            source, first = target, first + size
        assert torch.equal(torch.cat(parts), whole)
        written = [2, *(slot for _, slot in SAVES)]
        assert torch.equal(kept(op, state)[written], expected[written])


@pytest.mark.parametrize("dtype", DTYPES)
@each_op
def test_bits_do_not_depend_on_the_batch(kernels: Kernels, op: Op, dtype: torch.dtype) -> None:
    """Nor on threads, nor on whether a state is overwritten; a state of zeros is as good as none."""
    ops, counts, sources = NativeStateOps(kernels), [1, 33, 1, 35], [0, 1, 2, NO_STATE]
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        outputs, slots = run(op, ops, dtype, StateMetadata.of_sequences(counts, sources, [0, 1, 2, 3]))
        first = 0
        for place, (count, source) in enumerate(zip(counts, sources, strict=True)):
            torch.set_num_threads(1)
            state, rows = filled(op, dtype), torch.arange(first, first + count)
            kept(op, state)[5] = 0
            start = 5 if source == NO_STATE else source
            alone = op(ops, dtype, rows, state, StateMetadata.of_sequences([count], [start], [7]))
            assert torch.equal(alone, outputs[rows])
            assert torch.equal(kept(op, state)[7], slots[place])
            first += count


def test_many_rows_are_shared_by_threads(kernels: Kernels) -> None:
    """As many as are worth it."""
    ops, op = NativeStateOps(kernels), replace(OPS["delta"], heads=32)
    metadata = StateMetadata.of_sequences([ROWS], [1], [1])
    torch.set_num_threads(1)
    expected = run(op, ops, torch.bfloat16, metadata)
    torch.set_num_threads(3)
    for actual, wanted in zip(run(op, ops, torch.bfloat16, metadata), expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("groups", "width", "own"), [(3, 64, False), (2, 48, True), (1, 400, True)])
def test_gated_norm(kernels: Kernels, groups: int, width: int, own: bool, before: bool, dtype: torch.dtype) -> None:
    ops = NativeStateOps(kernels)
    x, gate = (strided(ROWS, groups, width, dtype=dtype, seed=seed) for seed in (0, 1))
    x[..., width - 5 :] = 0
    weight = numbers(groups if own else 1, width, dtype=torch.float32, seed=2)
    together = ops.gated_norm(x, gate, weight, 1e-5, width - 5, norm_before_gate=before)
    expected = StateOps().gated_norm(x, gate, weight, 1e-5, width - 5, norm_before_gate=before)
    assert together.dtype == expected.dtype
    assert torch.allclose(together.float(), expected.float(), **tolerance(dtype))
    for row in (0, 1, ROWS - 1):
        at = slice(row, row + 1)
        alone = ops.gated_norm(x[at], gate[at], weight, 1e-5, width - 5, norm_before_gate=before)
        assert torch.equal(alone[0], together[row])


def steps_of(ops: StateOps, decays: torch.Tensor, rate: float, value: float, start: float) -> torch.Tensor:
    """Of a state ``start``: exp(s · rate) · start + s · value, for each decay input."""
    count = len(decays)
    state = LayerState(torch.empty(0), torch.full((count, 1, 16, 16), start))
    unit = torch.zeros(count, 1, 16)
    unit[:, :, 0] = 1.0
    slots = range(count)
    parameters = RecurrenceParameters(torch.tensor([rate]), torch.zeros(1), None)
    metadata = StateMetadata.of_sequences([1] * count, slots, slots)
    values = torch.full((count, 1, 16), value)
    return ops.recurrence(unit, unit, values, decays[:, None], None, parameters, state, metadata)[:, 0, 0].double()


def test_steps_and_factors_are_accurate(kernels: Kernels) -> None:
    ops = NativeStateOps(kernels)
    x = torch.cat([torch.linspace(-87, 87, 3000), torch.linspace(-2, 2, 1001), torch.tensor([-1e-30, 1e4, 1e38])])
    exact = torch.logaddexp(x.double(), torch.zeros(1, dtype=torch.float64))
    assert ((steps_of(ops, x, -1.0, 1.0, 0.0) - exact) / exact).abs().max() < 1e-6
    # Factors: of steps up to 80, which are nearly the inputs themselves.
    x = torch.linspace(-20, 80, 3001)
    exact = torch.nn.functional.softplus(x.double(), threshold=1000).mul(-1).exp()
    error = (steps_of(ops, x, -1.0, 0.0, 1.0) - exact) / exact
    assert (error.abs() / (1 + x.clamp_min(0))).max() < 1e-6
    odd = torch.tensor([-1e4, -math.inf, math.nan])
    found = steps_of(ops, odd, -1.0, 1.0, 1.0)
    assert found[:2].tolist() == [1.0, 1.0]
    assert found[2].isnan()


STEPS: tuple[tuple[list[int], list[int], list[int]], ...] = (
    ([5], [NO_STATE], [0]),
    ([3, 1], [NO_STATE, 0], [1, 0]),
    ([1, 1, 1], [0, 1, NO_STATE], [0, 4, 2]),
    ([ROWS, 2], [NO_STATE, 4], [3, 4]),
    ([1], [3], [3]),
)
"""Rows, sources and targets of the sequences of each step: larger and smaller ones."""


class Stack:
    """Layers of a convolution, a recurrence and a norm, without attention."""

    def __init__(self, backend: NativeBackend) -> None:
        self.spec = RecurrentSpec(num_key_heads=1, num_heads=2, key_dim=16, value_dim=16, conv_width=3)
        self.calls = 0
        self._backend = backend
        self._ops = backend.state_ops()
        self._inputs = backend.linear(numbers(112, 32, dtype=torch.bfloat16, seed=2, size=0.2))
        self._outputs = backend.linear(numbers(32, 32, dtype=torch.bfloat16, seed=3, size=0.2))
        self._taps = numbers(4, 64, dtype=torch.float32, seed=4)
        self._norm = numbers(1, 16, dtype=torch.float32, seed=5)
        self._parameters = RecurrenceParameters(-torch.ones(2), torch.zeros(2), torch.ones(2), normalize_eps=1e-6)

    def __call__(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        self.calls += 1
        assert context.state_metadata is not None
        for state in context.states:
            hidden = self._outputs(self._mixed(self._inputs(hidden), state, context.state_metadata))
        return self._backend.select_rows(hidden, context.rows)

    def _mixed(self, x: torch.Tensor, state: LayerState, metadata: StateMetadata) -> torch.Tensor:
        mixed, gate, decay, update = x.split([64, 32, 8, 8], 1)
        mixed = self._ops.short_convolution(mixed, self._taps, None, state, metadata, silu=True)
        query, key, value = (each.unflatten(1, (-1, 16)) for each in mixed.split([16, 16, 32], 1))
        given = self._parameters, state, metadata
        y = self._ops.recurrence(query, key, value, decay[:, :2], update[:, :2], *given)
        y = self._ops.gated_norm(y, gate.unflatten(1, (2, 16)), self._norm, 1e-6, 16, norm_before_gate=True)
        return y.flatten(1)


@torch.inference_mode()
def test_replayed_steps_have_the_same_bits() -> None:
    """With the states of the step, not those of the capture; and other states are captured anew."""
    backend = NativeBackend(load_kernels())
    stack, plain = Stack(backend), Stack(backend)
    graph = KernelGraph(stack, load_kernels().replay)

    def outputs(layers: DecoderStack) -> list[torch.Tensor]:
        cache = StateCacheSpec((plain.spec,) * 2, torch.bfloat16).allocate(SLOTS, torch.device("cpu"))
        kv_caches: list[torch.Tensor] = []
        found = []
        for seed, (counts, sources, targets) in enumerate(STEPS):
            metadata = StateMetadata.of_sequences(counts, sources, targets)
            hidden = numbers(sum(counts), 32, dtype=torch.bfloat16, seed=seed)
            rows = torch.tensor([sum(counts) - 1]) if seed % 2 else None
            context = ForwardContext(kv_caches, (), rows, states=cache, state_metadata=metadata)
            found.append(layers(hidden, context).clone())
            del metadata, context
        used = sorted({slot for _, _, targets in STEPS for slot in targets})
        return [*found, *(kept[used] for layer in cache for kept in (layer.conv, layer.recurrent) if kept is not None)]

    for _ in range(2):
        for actual, expected in zip(outputs(graph), outputs(plain), strict=True):
            assert torch.equal(actual, expected)
    assert stack.calls == 4, "once for each cache, and for the step that is larger than those before"
