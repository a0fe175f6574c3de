"""The slots of states that a step reads and writes, against lists made sequence by sequence."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine_core.kv_cache_interface import NO_STATE, KVCacheGroup, group_layers
from engine_core.request import SamplingParams
from engine_core.states.base import StateMetadata
from engine_core.step import NewSequence, StatePlan, StepPlan
from engine_core.worker.input_batch import BatchLimits, InputBatch
from engine_core.worker.state_inputs import state_metadata

GREEDY = SamplingParams(temperature=0.0)


def tensors(metadata: StateMetadata) -> list[list[int]]:
    each = (metadata.query_starts, metadata.sources, metadata.save_starts, metadata.save_rows, metadata.save_slots)
    assert all(tensor.dtype == torch.int32 for tensor in each)
    return [tensor.tolist() for tensor in each]


@pytest.mark.parametrize("saving", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_every_state_is_saved_after_its_row(seed: int, saving: float) -> None:
    rng = random.Random(seed)
    counts = [rng.choice([1, 1, 2, 9]) for _ in range(rng.randint(1, 7))]
    seq_ids = rng.sample(range(100), len(counts))
    sources, targets = ([rng.choice([NO_STATE, *range(50)]) for _ in counts] for _ in range(2))
    saves = [
        sorted((rng.randint(1, count), rng.randrange(50)) for _ in range(rng.randint(1, 3)))
        if rng.random() < saving
        else []
        for count in counts
    ]
    plan = StatePlan(sources, targets, {seq: each for seq, each in zip(seq_ids, saves, strict=True) if each})
    made = state_metadata(plan, seq_ids, np.cumsum([0, *counts], dtype=np.int32))
    assert tensors(made) == tensors(StateMetadata.of_sequences(counts, sources, targets, saves))


@pytest.mark.parametrize("groups", [(), group_layers([None])])
def test_a_batch_prepares_states_with_and_without_attention(groups: tuple[KVCacheGroup, ...]) -> None:
    batch = InputBatch(BatchLimits(4, 16, 32, 4, groups, keeps_states=True), 100, [])
    tables = [[1, 2] for _ in groups]
    new = [NewSequence(seq, 0, [seq, 5, 6, 7, 8], 5, 0, tables, GREEDY) for seq in (3, 9)]
    prompt = StepPlan(
        0, [], new, [3, 9], [5, 3], [True, False], {}, states=StatePlan([NO_STATE, 6], [0, 1], {3: [(4, 2)]})
    )
    batch.update(prompt)
    inputs = batch.prepare(prompt)
    assert inputs.state_metadata is not None
    assert tensors(inputs.state_metadata) == [[0, 5, 8], [NO_STATE, 6], [0, 2, 3], [3, 4, 7], [2, 0, 1]]
    assert len(inputs.metadata) == len(tables)
    assert (inputs.positions.tolist(), inputs.lengths.tolist()) == ([0, 1, 2, 3, 4, 0, 1, 2], [5, 3])
    batch.advance(inputs)
    decode = StepPlan(1, [], [], [9], [1], [False], {}, states=StatePlan([1], [1]))
    batch.update(decode)
    following = batch.prepare(decode)
    assert following.state_metadata is not None
    assert tensors(following.state_metadata) == [[0, 1], [1], [0, 1], [0], [1]]
    assert following.input_ids.tolist() == [7]
    stateless = StepPlan(2, [], [], [9], [1], [True], {})
    assert batch.prepare(stateless).state_metadata is None
