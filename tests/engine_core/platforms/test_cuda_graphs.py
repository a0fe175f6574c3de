"""Which steps are replayed, how they are padded, and in which order graphs are captured, with a fake recorder."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from engine_core.attention.base import AttentionMetadata
from engine_core.forward_context import Caches, ForwardContext
from engine_core.kv_cache_interface import NO_STATE, group_layers
from engine_core.platforms.cuda_graphs import (
    CudaGraphRecorder,
    DeviceForward,
    DeviceInputs,
    GraphInputBuffers,
    graph_sizes,
)
from engine_core.request import SamplingParams
from engine_core.states.base import LayerState
from engine_core.step import NewSequence, StatePlan, StepPlan
from engine_core.worker.adapters import NO_ADAPTER, AdapterRows
from engine_core.worker.forward import PendingTokens
from engine_core.worker.input_batch import BatchLimits, InputBatch, StepInputs

CPU = torch.device("cpu")
LIMITS = BatchLimits(
    12, 40, max_model_len=64, block_size=16, kv_cache_groups=group_layers([None, 32]), keeps_states=True
)
SLOTS = 30
GREEDY = SamplingParams(temperature=0.0)


class Adapters:
    """As much of ``LoRALayers`` as steps know."""

    def __init__(self) -> None:
        self.change_embeddings = False
        self.launching = False
        self.rehearsed: list[tuple[int, int]] = []

    @contextmanager
    def rehearsing(self, rows: int, rank: int) -> Iterator[None]:
        self.rehearsed.append((rows, rank))
        self.launching = True
        yield
        self.launching = False


class Model:
    """Its hidden states tell the inputs; its cache is written as attention would: nothing where a slot is below 0.

    A sequence's state is the sum of its tokens.
    """

    def __init__(self, lora: Adapters | None = None) -> None:
        self.lora = lora
        self.seen: list[DeviceInputs] = []
        self.launched: list[tuple[int, bool]] = []
        """Rows, and whether adapters would have added to them."""

    def forward(self, input_ids, positions, context: ForwardContext) -> torch.Tensor:
        metadata, rows = context.metadata, context.rows
        self.launched.append((len(input_ids), self.lora is not None and self.lora.launching))
        self.seen.append(DeviceInputs(input_ids.clone(), positions.clone(), metadata, context.state_metadata))
        columns = [input_ids.float(), positions.float(), self._sums(input_ids, context)]
        for number, group in enumerate(metadata):
            assert group.group == number
            for token, slot in zip(input_ids.tolist(), group.slot_mapping.tolist(), strict=True):
                if slot >= 0:
                    context.kv_caches[0][slot] = token
            first = group.block_tables[:, :1].repeat_interleave(group.query_starts.diff(), 0)
            columns += [first[:, 0].float(), group.seq_lens.repeat_interleave(group.query_starts.diff()).float()]
        hidden = torch.stack(columns, 1)
        return hidden if rows is None else hidden[rows]

    def _sums(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        states, memory = context.state_metadata, context.states[0].conv
        assert states is not None
        starts, save_starts, sums = states.query_starts.tolist(), states.save_starts.tolist(), []
        sources = [memory[source].item() if source != NO_STATE else 0.0 for source in states.sources.tolist()]
        for sequence, total in enumerate(sources):
            saves = slice(save_starts[sequence], save_starts[sequence + 1])
            for row in range(*starts[sequence : sequence + 2]):
                total += input_ids[row].item()
                sums.append(total)
                for at, slot in zip(states.save_rows[saves].tolist(), states.save_slots[saves].tolist(), strict=True):
                    if at == row and slot != NO_STATE:
                        memory[slot] = total
        return torch.tensor(sums)


class Attention:
    """Hears of steps before they are computed."""

    def __init__(self) -> None:
        self.planned: list[tuple[int, int | None]] = []

    def plan(self, metadata: AttentionMetadata, size: int | None = None) -> None:
        assert metadata.seq_lens.device == CPU
        self.planned.append((len(metadata.seq_lens), size))


class FakeRecorder:
    """A graph that is its function: like a real one it knows no more than the addresses of its inputs."""

    def __init__(self) -> None:
        self.graphs: list[Callable[[], None]] = []
        self.replayed = 0
        self.last: int | None = None
        """The number of the last graph that was replayed."""

    def record(self, function: Callable[[], None]) -> FakeRecorder._Graph:
        function()
        self.graphs.append(function)
        return self._Graph(self, function, len(self.graphs) - 1)

    class _Graph:
        def __init__(self, recorder: FakeRecorder, function: Callable[[], None], number: int) -> None:
            self._recorder, self._function, self._number = recorder, function, number

        def replay(self) -> None:
            self._recorder.replayed += 1
            self._recorder.last = self._number
            self._function()


def batch_of(count: int, length: int = 20) -> tuple[InputBatch, StepInputs]:
    """``count`` sequences that decode their last of ``length`` + i tokens."""
    batch = InputBatch(LIMITS, 1000, [])
    new = [
        NewSequence(seq, 0, [100 * seq + i for i in range(length + seq)], length, length + seq - 1, tables, GREEDY)
        for seq in range(count)
        for tables in [[[7 + 4 * seq, 3], [8 + 4 * seq, 2]]]
    ]
    states = StatePlan([NO_STATE, *range(1, count)], [2 * count, *range(1, count)], {count - 1: [(1, 2 * count - 1)]})
    plan = StepPlan(0, [], new, list(range(count)), [1] * count, [True] * count, {}, states=states)
    batch.update(plan)
    return batch, batch.prepare(plan)


@pytest.fixture(autouse=True)
def _as_a_step_is_computed() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def caches() -> Caches:
    return Caches([torch.full((16 * 64,), -1.0)], [LayerState(torch.arange(100.0, 100 + SLOTS).view(-1, 1, 1), None)])


def copied(caches: Caches) -> Caches:
    [kv], [state] = caches.kv, caches.states
    return Caches([kv.clone()], [LayerState(state.conv.clone(), None)])


def captured(caches: Caches) -> tuple[DeviceForward, Model, FakeRecorder]:
    model, recorder = Model(), FakeRecorder()
    forward = DeviceForward(model, LIMITS, CPU, Attention())
    forward.capture(recorder, caches, forward.sizes)
    return forward, model, recorder


def test_sizes() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(256) == [1, 2, 4, *range(8, 257, 8)]
    assert graph_sizes(4096)[-1] == 512


def test_the_largest_is_captured_first_and_capturing_touches_no_cache(caches: Caches) -> None:
    _, model, _ = captured(caches)
    assert [len(inputs.input_ids) for inputs in model.seen] == [12, 8, 4, 2, 1]
    assert (caches.kv[0] == -1).all()
    assert torch.equal(caches.states[0].conv.view(-1), torch.arange(100.0, 100 + SLOTS))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 12])
def test_a_replayed_step_computes_what_it_would_kernel_by_kernel(count: int, caches: Caches) -> None:
    forward, model, recorder = captured(caches)
    for rows in (12, count):  # a larger step before leaves inputs behind
        _, inputs = batch_of(rows)
        expected_caches, again = copied(caches), copied(caches)
        expected = DeviceForward(Model(), LIMITS, CPU, Attention())(inputs, expected_caches, None, None)
        before = copied(caches)
        hidden = forward(inputs, caches, None, None).clone()
        assert torch.equal(hidden, expected)
        assert torch.equal(caches.kv[0], expected_caches.kv[0])
        assert torch.equal(caches.states[0].conv, expected_caches.states[0].conv)
        wanted = np.arange(0, rows, 2)
        uncaptured = DeviceForward(Model(), LIMITS, CPU, Attention())
        assert torch.equal(uncaptured(inputs, again, None, wanted), expected[::2])
        caches.states[0].conv.copy_(before.states[0].conv)
        assert torch.equal(forward(inputs, caches, None, wanted), expected[::2])
    assert recorder.replayed == 4
    size = next(size for size in graph_sizes(12) if size >= count)
    padded = model.seen[-1]
    assert len(padded.input_ids) == size
    for group in padded.metadata:
        assert group.slot_mapping[count:].tolist() == [-1] * (size - count)
        assert group.seq_lens[count:].tolist() == [0] * (size - count)
        assert group.query_starts.tolist() == list(range(size + 1))
        assert group.max_seq_len == LIMITS.max_model_len
    states = padded.state_metadata
    assert states is not None
    assert states.sources[count:].tolist() == [NO_STATE] * (size - count)
    assert states.save_starts[count:].diff().tolist() == [1] * (size - count), "each saves once"
    assert states.save_slots[states.save_starts[count] : states.save_starts[-1]].tolist() == [NO_STATE] * (size - count)


def test_other_steps_are_computed_kernel_by_kernel(caches: Caches) -> None:
    forward, _, recorder = captured(caches)
    batch = InputBatch(LIMITS, 1000, [])
    states = StatePlan([NO_STATE], [4], {0: [(2, 7)]})
    new = [NewSequence(0, 0, [1, 2, 3], 3, 0, [[5], [6]], GREEDY)]
    plan = StepPlan(0, [], new, [0], [3], [True], {}, states=states)
    batch.update(plan)
    prompt = batch.prepare(plan)
    assert forward(prompt, caches, None, None)[:, 0].tolist() == [1, 2, 3]
    assert caches.states[0].conv[[4, 7]].view(-1).tolist() == [6, 3]
    forward(batch_of(2)[1], copied(caches), None, None)  # not the caches of the graphs
    assert recorder.replayed == 0
    forward.capture(recorder, caches, forward.sizes[:2])
    forward(batch_of(3)[1], caches, None, None)  # larger than any graph
    assert recorder.replayed == 0
    forward(batch_of(2)[1], caches, None, None)
    assert recorder.replayed == 1
    forward.release()
    forward(batch_of(2)[1], caches, None, None)
    assert recorder.replayed == 1


def test_steps_with_adapters_have_graphs_of_their_own(caches: Caches) -> None:
    lora, recorder = Adapters(), FakeRecorder()
    model = Model(lora)
    forward = DeviceForward(model, replace(LIMITS, max_lora_rank=8), CPU, Attention())
    forward.capture(recorder, caches, forward.sizes)
    assert model.launched == [(size, adapted) for size in (12, 8, 4, 2, 1) for adapted in (False, True)]
    assert lora.rehearsed == [(12, 8)] * 5
    assert forward.num_graphs == 10
    _, inputs = batch_of(3)
    expected = forward(inputs, copied(caches), None, None)
    adapted = replace(inputs, adapters=AdapterRows.of(np.array([5, NO_ADAPTER, 7])))
    before = caches.states[0].conv.clone()
    for step, graph in ((adapted, 5), (inputs, 4), (adapted, 5)):
        caches.states[0].conv.copy_(before)
        assert torch.equal(forward(step, caches, None, None), expected)
        assert recorder.last == graph
    caches.states[0].conv.copy_(before)
    lora.change_embeddings, recorder.last = True, None  # rows of embeddings are on the host
    assert torch.equal(forward(adapted, caches, None, None), expected)
    assert recorder.last is None


def test_attention_hears_of_every_step_and_of_its_graph(caches: Caches) -> None:
    attention = Attention()
    forward = DeviceForward(Model(), LIMITS, CPU, attention)
    forward.capture(FakeRecorder(), caches, forward.sizes)
    planned = attention.planned
    assert planned == [(0, 12), (0, 8), (0, 4), (0, 2), (0, 1)]
    planned.clear()
    forward(batch_of(3)[1], caches, None, None)
    forward(batch_of(3)[1], copied(caches), None, None)
    assert planned == [(3, 4), (3, None)]


def test_no_row_of_a_step_shares_bytes_with_another_array() -> None:
    """Inputs of every size lie apart, and where the next size expects them."""
    buffers = GraphInputBuffers(LIMITS, CPU)
    for size in graph_sizes(LIMITS.max_num_seqs):
        inputs = buffers.padded(size)
        arrays = [inputs.input_ids, inputs.positions, *(group.slot_mapping for group in inputs.metadata)]
        arrays += [inputs.metadata[0].query_starts, inputs.metadata[0].seq_lens]
        states = inputs.state_metadata
        assert states is not None
        arrays += [states.sources, states.save_starts, states.save_rows, states.save_slots]
        spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in arrays)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(start % 16 == 0 for start, _ in spans)
    assert max(graph_sizes(LIMITS.max_num_seqs)) == LIMITS.max_num_seqs


@pytest.mark.parametrize("replayed", [True, False])
def test_tokens_that_the_host_does_not_know_are_taken_on_the_device(replayed: bool, caches: Caches) -> None:
    forward, _, recorder = captured(caches)
    _, inputs = batch_of(3)
    pending = PendingTokens(np.array([2, 0]), np.array([1, 3]), torch.tensor([50, 51, 52, 53]))
    hidden = forward(inputs, caches if replayed else copied(caches), pending, None)
    assert hidden[:, 0].tolist() == [53, float(inputs.input_ids[1]), 51]
    assert recorder.replayed == int(replayed)


def test_no_garbage_is_collected_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It might hold another graph, whose end would make the capture invalid."""
    cuda = MagicMock(stream=lambda _: nullcontext(), graph=lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "cuda", cuda)
    seen: list[bool] = []
    CudaGraphRecorder().record(lambda: seen.append(gc.isenabled()))
    assert seen == [True, False], "the first call compiles"
    assert gc.isenabled()


def test_a_step_with_many_saves_is_computed_kernel_by_kernel(caches: Caches) -> None:
    forward, _, recorder = captured(caches)
    batch, _ = batch_of(2)
    saves = {0: [(1, 20), (1, 21)], 1: [(1, 22)]}
    plan = StepPlan(1, [], [], [0, 1], [1, 1], [True, True], {}, states=StatePlan([0, 1], [0, 1], saves))
    forward(batch.prepare(plan), caches, None, None)
    assert recorder.replayed == 0
    assert caches.states[0].conv[20].item() == caches.states[0].conv[21].item() == caches.states[0].conv[0].item()


def test_a_model_without_attention_is_captured(caches: Caches) -> None:
    limits, states = replace(LIMITS, kv_cache_groups=()), Caches([], caches.states)
    model, recorder, attention = Model(), FakeRecorder(), Attention()
    forward = DeviceForward(model, limits, CPU, attention)  # type: ignore[arg-type]
    forward.capture(recorder, states, forward.sizes)
    batch = InputBatch(limits, 1000, [])
    plan = StepPlan(
        0, [], [NewSequence(0, 0, [5, 6], 2, 1, [], GREEDY)], [0], [1], [True], {}, states=StatePlan([3], [4])
    )
    batch.update(plan)
    assert forward(batch.prepare(plan), states, None, None).tolist() == [[6, 1, 103 + 6]]
    assert (recorder.replayed, attention.planned) == (1, [])
    assert states.states[0].conv[4].item() == 109
