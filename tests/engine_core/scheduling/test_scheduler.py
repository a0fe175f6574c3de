"""Who computes how much in a step: budget, chunks, ranks, preemption, limits; and what the load is."""

from __future__ import annotations

import pytest

from engine_core.config import CacheConfig, SchedulerConfig
from engine_core.errors import ConfigError, InvalidRequestError, OutOfMemoryError, QueueFullError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.scheduling import Scheduler

from .checked_executor import model_spec
from .harness import Harness


def test_a_long_prompt_is_computed_in_chunks_of_the_budget_and_tells_its_progress():
    engine = Harness(max_num_batched_tokens=10)
    engine.add("long", 25)
    progress = []
    for _ in range(3):
        output = engine.step()["long", 0]
        progress.append((output.cached_tokens, output.prefilled_tokens, len(output.token_ids)))
    assert progress == [(0, 10, 0), (None, 20, 0), (None, 25, 1)]
    engine.add("short", 9)
    outputs = engine.step()
    assert outputs["long", 0].prefilled_tokens is None
    assert (outputs["short", 0].cached_tokens, outputs["short", 0].prefilled_tokens) == (0, None)


def test_a_prompt_in_front_leaves_a_token_to_everyone_behind():
    engine = Harness(max_num_batched_tokens=8)
    engine.add("patient", 4, max_tokens=20, priority=1)
    engine.step()
    engine.add("urgent", 30, priority=0)
    assert engine.next_batch() == [("patient", 0, 1), ("urgent", 0, 7)]
    for _ in range(3):
        assert engine.next_batch() == [("urgent", 0, 7), ("patient", 0, 1)]
    engine.finish()


def test_without_chunks_a_prompt_waits_until_the_budget_holds_all_of_it():
    engine = Harness(max_num_batched_tokens=64, enable_chunked_prefill=False)
    engine.add("a", 40, max_tokens=2)
    engine.add("b", 30, max_tokens=2)
    engine.add("c", 2, max_tokens=2)
    assert engine.next_batch() == [("a", 0, 40)]  # nor does the short one overtake
    assert engine.next_batch() == [("a", 0, 1), ("b", 0, 30), ("c", 0, 2)]
    engine.finish()


def test_a_prompt_is_admitted_only_with_blocks_for_all_of_it_and_nobody_overtakes_it():
    engine = Harness(blocks=16, max_num_batched_tokens=16)
    engine.add("a", 40, max_tokens=3)  # 10 blocks at once, although its first chunk needs 4
    engine.add("b", 28, max_tokens=3)  # 7 blocks
    engine.add("c", 4, max_tokens=3)
    engine.step()
    assert engine.used == 10
    for _ in range(4):
        engine.step()
        assert engine.planned == [("a", 0)]
    engine.step()
    assert engine.planned == [("b", 0)]
    engine.finish()


def test_admission_leaves_a_block_to_each_running_sequence():
    engine = Harness(blocks=16)
    engine.add("a", 40, max_tokens=8)
    engine.add("b", 23, max_tokens=8)  # 6 blocks are free, which it would fill
    engine.step()
    assert engine.planned == [("a", 0)]
    engine.finish()


def growing():
    """Two sequences that will outgrow 16 blocks."""
    engine = Harness(blocks=16)
    engine.add("first", 30, max_tokens=30)
    engine.step()
    engine.add("second", 25, max_tokens=30)
    return engine


def preempting():
    """The same after the step that preempted."""
    engine = growing()
    engine.step_until_preemption()
    return engine


def test_nobody_is_admitted_in_a_step_that_preempted():
    engine = preempting()
    steps = engine.scheduler.stats().steps
    engine = growing()
    for _ in range(steps - 2):
        engine.step()
    engine.add("tiny", 1, priority=-1)
    assert engine.next_batch() == [("first", 0, 1)]
    assert engine.next_batch() == [("first", 0, 1), ("tiny", 0, 1)]
    engine.finish()


def test_a_preempted_sequence_comes_back_in_front_with_its_output_as_if_it_were_new():
    engine = preempting()
    second = engine.sequence("second")
    assert second.seq_id in engine.plan.released
    generated = len(second.output)
    engine.add("third", 4)
    engine.step_until(lambda: engine.plan.new)
    (new,) = [new for new in engine.plan.new if new.seq_id == second.seq_id]
    assert engine.plan.new[0] is new
    assert new.token_ids == [*second.group.request.prompt_token_ids, *second.output[:generated]]
    assert (new.num_prompt_tokens, new.num_computed_tokens) == (25, 0)
    engine.finish()
    assert engine.streams["second"].cached_tokens == 0


def test_priority_decides_who_is_preempted():
    engine = Harness(blocks=16)
    engine.add("patient", 30, max_tokens=30, priority=1)
    engine.step()
    engine.add("urgent", 26, max_tokens=30, priority=0)
    engine.step_until_preemption()
    assert engine.batch == [("urgent", 0, 1)]
    engine.finish()


def test_fcfs_knows_arrival_alone():
    engine = Harness(max_num_seqs=1, policy="fcfs")
    engine.add("a", tenant="x", priority=9)
    engine.add("b", tenant="x", priority=0)
    engine.add("c", tenant="y", priority=0)
    assert engine.order() == ["a", "b", "c"]


def test_tenants_take_turns():
    engine = Harness(max_num_seqs=1, max_num_batched_tokens=8)
    for serial in range(4):
        engine.add(f"x{serial}", 4, tenant="x")
    for serial in range(2):
        engine.add(f"y{serial}", 4, tenant="y")
    assert engine.order() == ["x0", "y0", "x1", "y1", "x2", "x3"]  # prompt and output come to one quantum


def test_a_tenant_pays_for_the_output_it_asks_for():
    engine = Harness(max_num_seqs=1, max_num_batched_tokens=8)
    for serial in range(2):
        engine.add(f"long{serial}", 4, tenant="x", max_tokens=28)
    for serial in range(5):
        engine.add(f"short{serial}", 4, tenant="y", max_tokens=4)
    order = engine.order()
    assert order.index("long0") == 3
    assert order[-1] == "long1"


def test_the_waiting_queue_is_limited():
    engine = Harness(max_num_queued_reqs=2, max_num_seqs=1, policy="fcfs")
    engine.add("a")
    engine.add("b")
    with pytest.raises(QueueFullError, match="max_num_queued_reqs"):
        engine.add("c")
    engine.step()
    engine.add("c")
    with pytest.raises(QueueFullError):
        engine.add("d")
    engine.cancel("b")
    engine.add("d")
    engine.finish()


def test_a_tenant_may_have_as_many_waiting_as_it_leaves_free():
    engine = Harness(max_num_queued_reqs=8, max_num_seqs=1)
    for serial in range(4):
        engine.add(f"flood{serial}", tenant="x", priority=serial)
    with pytest.raises(QueueFullError, match="max_num_queued_reqs"):
        engine.add("flood4", tenant="x", priority=-1)
    for serial in range(2):
        engine.add(f"other{serial}", tenant="y")
    with pytest.raises(QueueFullError):
        engine.add("other2", tenant="y")
    engine.cancel("flood3")
    with pytest.raises(QueueFullError):
        engine.add("flood4", tenant="x")
    engine.add("other2", tenant="y")
    engine.finish()


def test_a_live_request_id_is_refused_and_a_used_one_is_not():
    engine = Harness()
    engine.add("a")
    with pytest.raises(InvalidRequestError, match="request_id"):
        engine.add("a")
    engine.finish()
    engine.add("a")
    engine.finish()


def test_limits_that_cannot_work_are_refused():
    model, cache = model_spec(max_model_len=64), CacheConfig(block_size=4)
    config = SchedulerConfig(max_num_batched_tokens=63, enable_chunked_prefill=False)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=63.*--max-model-len \(64\)"):
        Scheduler(config, cache, KVCacheConfig(16, 4, 1), model)
    with pytest.raises(OutOfMemoryError, match=r"15 blocks of 4 tokens, fewer than the 16.*max_model_len"):
        Scheduler(SchedulerConfig(), cache, KVCacheConfig(15, 4, 1), model)


def test_stats_tell_the_load():
    engine = Harness(max_num_seqs=1, max_num_batched_tokens=8)
    engine.add("a", 12, max_tokens=2)
    engine.add("b", 7, n=3)
    engine.step()
    stats = engine.scheduler.stats()
    assert (stats.running_seqs, stats.waiting_reqs, stats.waiting_seqs, stats.queued_tokens) == (1, 1, 3, 7)
    assert stats.returning_reqs == 0
    assert (stats.kv_blocks, stats.kv_blocks_used, stats.kv_usage) == (64, 3, 3 / 64)
    assert (stats.steps, stats.computed_tokens, stats.generated_tokens) == (1, 8, 0)
    engine.cancel("b", 0)
    stats = engine.scheduler.stats()
    assert (stats.waiting_reqs, stats.waiting_seqs, stats.queued_tokens) == (1, 2, 7)
    engine.finish()
    stats = engine.scheduler.stats()
    assert stats.generated_tokens == 2 + 2 * 4
    assert stats.computed_tokens == 12 + 1 + (7 + 3) + (3 + 3)  # the second choice starts from one shared block


def test_queued_tokens_follow_the_choice_that_stands_for_its_request():
    engine = Harness()
    engine.add("r", 6, n=2, resume={0: (5, 6, 7), 1: ()})
    assert engine.scheduler.stats().queued_tokens == 9
    engine.cancel("r", 0)
    assert engine.scheduler.stats().queued_tokens == 6
    engine.finish()
