"""Steps made up for measuring are steps that a scheduler might plan, and none is larger."""

import pytest

from engine_core.kv_cache_interface import group_layers
from engine_core.worker.dummy_batches import largest_step, warm_up_steps
from engine_core.worker.input_batch import BatchLimits

CASES = [
    BatchLimits(max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=2048, block_size=16),
    BatchLimits(max_num_seqs=1, max_num_batched_tokens=2048, max_model_len=300, block_size=16),
    BatchLimits(max_num_seqs=100, max_num_batched_tokens=37, max_model_len=64, block_size=8),
    BatchLimits(max_num_seqs=9, max_num_batched_tokens=500, max_model_len=20, block_size=1),
    BatchLimits(max_num_seqs=3, max_num_batched_tokens=2, max_model_len=2, block_size=16),
    BatchLimits(9, 500, 40, 4, group_layers([None, 8, 8])),
]
VOCAB = 50


@pytest.mark.parametrize("limits", CASES, ids=str)
def test_every_plan_keeps_the_limits(limits: BatchLimits) -> None:
    largest = largest_step(limits, VOCAB, sampler_rows=40)
    assert len(largest.seq_ids) == min(limits.max_num_seqs, limits.max_num_batched_tokens)
    for plan in [largest, *warm_up_steps(limits, VOCAB)]:
        assert len(plan.seq_ids) == len(plan.num_tokens) == len(plan.samples) <= limits.max_num_seqs
        assert plan.total_tokens <= limits.max_num_batched_tokens
        for sequence in plan.new:
            rows = plan.num_tokens[plan.seq_ids.index(sequence.seq_id)]
            reached = sequence.num_computed_tokens + rows
            assert reached <= len(sequence.token_ids) <= limits.max_model_len
            assert len(sequence.block_ids) == len(limits.kv_cache_groups)
            assert all(len(table) * limits.block_size >= reached for table in sequence.block_ids)
            assert set(sequence.token_ids) <= set(range(VOCAB))
