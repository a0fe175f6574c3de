"""What a flood leaves to a tenant that was here lately: places, blocks, and room in each step."""

from __future__ import annotations

import pytest

from engine_core.scheduling.fairness import LATELY

from .harness import Harness


def flooded(count=40, *, before="other", prompt=4, max_tokens=30, **config):
    """A flood that comes a second after another tenant's request, which has ended."""
    engine = Harness(**{"max_num_seqs": 16, "max_num_batched_tokens": 1024, "blocks": 1024} | config)
    if before is not None:
        engine.add("before", tenant=before, max_tokens=1)
        engine.step_until(lambda: not engine.scheduler.has_work())
    engine.now += 1.0
    for serial in range(count):
        engine.add(f"flood {serial}", prompt, tenant="flood", max_tokens=max_tokens)
    return engine


def running(engine, tenant):
    return sum(seq.group.tenant == tenant for seq in engine.scheduler._lifecycle.running)


@pytest.mark.parametrize(("before", "places"), [("other", 15), ("flood", 16), (None, 16)])
def test_a_place_is_kept_for_who_was_here_lately(before, places):
    engine = flooded(before=before)
    engine.step()
    assert running(engine, "flood") == places


def test_who_comes_during_a_flood_begins_in_the_next_step():
    engine = flooded()
    engine.step()
    engine.add("late", tenant="other")
    assert ("late", 0) in engine.step()
    engine.finish()


def test_all_places_are_a_tenants_that_was_alone_for_a_while():
    engine = flooded()
    engine.step()
    engine.now += LATELY
    engine.step()
    assert running(engine, "flood") == 16


def test_a_tenant_below_its_share_takes_the_last_places():
    engine = flooded(max_num_seqs=32)
    engine.step()
    for serial in range(8):
        engine.add(f"other {serial}", tenant="other", max_tokens=30)
    engine.step()
    assert (running(engine, "flood"), running(engine, "other")) == (30, 2)
    engine.cancel("flood 0")
    engine.step()
    assert (running(engine, "flood"), running(engine, "other")) == (29, 3), "it goes before the flood"


@pytest.mark.parametrize("others", [1, 2])
def test_tenants_with_their_share_leave_a_place_to_the_next(others):
    engine = flooded()
    for serial in range(80):
        engine.add(f"other {serial}", tenant=f"other {serial % others}", max_tokens=30)
    engine.step()
    assert len(engine.scheduler._lifecycle.running) == 15
    engine.add("next", tenant="next")
    assert ("next", 0) in engine.step()


def test_without_fairness_nothing_is_kept():
    engine = flooded(policy="fcfs")
    engine.step()
    assert len(engine.scheduler._lifecycle.running) == 16


def long_prompts(*, before="other", **config):
    """A flood of them, and steps of 64 tokens, of which a quarter is 16."""
    return flooded(4, **{"before": before, "prompt": 300, "max_num_batched_tokens": 64, "max_model_len": 400} | config)


def test_prompts_of_a_flood_fill_a_quarter_of_a_step_beside_others():
    engine = long_prompts()
    engine.step()
    engine.add("short", 4, tenant="other", max_tokens=3)
    for others in (4, 1, 1):
        assert engine.next_batch() == [("flood 0", 0, 16), ("short", 0, others)]


@pytest.mark.parametrize("before", ["flood", None])
def test_prompts_of_a_tenant_that_is_alone_fill_a_step(before):
    engine = long_prompts(before=before)
    assert engine.next_batch() == [("flood 0", 0, 64)]


def test_a_tenant_is_alone_when_no_other_has_come_for_a_minute():
    engine = long_prompts()
    for silence, tokens in ((LATELY - 2, 16), (1, 64)):
        engine.now += silence
        assert engine.next_batch() == [("flood 0", 0, tokens)]


def test_prompts_that_are_not_computed_in_parts_may_fill_a_step():
    engine = flooded(4, prompt=60, max_num_batched_tokens=64, enable_chunked_prefill=False)
    assert ("flood 0", 0) in engine.step()


@pytest.mark.parametrize(("before", "used"), [("other", 49), ("flood", 56)])
def test_blocks_are_kept_for_who_was_here_lately(before, used):
    engine = flooded(before=before, blocks=64, prompt=28, max_num_seqs=32)
    engine.step()
    assert engine.used == used, "of each sequence seven, and one free for each that runs"
