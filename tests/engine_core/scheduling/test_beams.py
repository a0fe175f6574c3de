"""Beams in the scheduler, with events at chosen moments; the property test has them at any."""

from __future__ import annotations

import pytest

from engine_core.errors import InvalidRequestError
from engine_core.request import BeamSearch, FinishReason
from engine_core.sequence import SequenceState

from .audit import check_idle
from .checked_executor import failing
from .harness import Harness, make_request

SEARCH = {"temperature": 0.0, "beam_search": BeamSearch(4), "max_tokens": 8}


def test_beams_share_full_blocks_and_copy_the_last_one():
    harness = Harness(blocks=32)
    harness.add("a", prompt=10, **SEARCH, n=4)
    harness.step()
    assert harness.used == 2 + 4, "two full blocks of the prompt, and the third for each beam"
    plan = harness.plan_ahead()
    assert len(plan.copied_blocks) == 3
    assert [fork.parent for fork in plan.forks if fork.parent != fork.seq_id] == [plan.seq_ids[0]] * 3
    harness.take_results()
    harness.finish()


def test_beams_that_wait_give_up_their_blocks_for_one_that_lacks_them():
    harness = Harness(blocks=6, max_model_len=16)
    harness.add("a", prompt=7, **SEARCH, n=2)
    harness.step_until(lambda: _idle(harness))
    harness.finish()


def _idle(harness):
    """Whether a beam has lost its blocks, but not what it found."""
    groups = harness.scheduler._lifecycle.groups.values()
    return any(seq.state is SequenceState.IDLE for group in groups for seq in group.members.values())


def test_a_beam_without_a_place_takes_that_of_another_one_of_its_search():
    harness = Harness(max_num_seqs=4)
    harness.add("long", prompt=4, max_tokens=60)
    harness.step()
    harness.add("a", prompt=6, **SEARCH)
    harness.step_until(lambda: "a" not in harness.scheduler._lifecycle.groups)
    assert len(harness.streams["long"].tokens[0]) < 60, "the search waited for its end"
    harness.finish()


def test_a_beam_that_was_not_forked_starts_from_the_prompt_of_the_others():
    """Else it would compute it into blocks of its own, which might be held for others before they are filled."""
    harness = Harness(max_num_seqs=2)
    harness.add("a", prompt=30, **SEARCH | {"beam_search": BeamSearch(2)})
    harness.add("b", max_tokens=1)
    assert harness.next_batch() == [("a", 0, 30), ("b", 0, 4)]
    assert harness.next_batch() == [("a", 0, 1), ("a", 1, 31 - 28)]
    harness.finish()


def test_no_beam_starts_from_a_prompt_that_is_not_computed():
    """The executor tells: a beam was preempted while it computed the prompt anew."""
    harness = Harness(blocks=24, max_num_seqs=3, max_num_batched_tokens=4)
    for name, prompt, params in (("h", 4, {"max_tokens": 58}), ("x", 4, {"max_tokens": 18})):
        harness.add(name, prompt=prompt, **params)
        harness.step()
    harness.add("a", prompt=30, **SEARCH | {"beam_search": BeamSearch(2)}, n=2)
    harness.finish()


def test_a_beam_without_blocks_takes_those_of_another_one_of_its_search():
    harness = Harness(blocks=20)
    harness.add("long", prompt=4, max_tokens=56)
    harness.step(40)
    harness.add("a", prompt=10, **SEARCH | {"max_tokens": 6})
    harness.step_until(lambda: "a" not in harness.scheduler._lifecycle.groups)
    assert len(harness.streams["long"].tokens[0]) < 56, "the search waited for its end"
    harness.finish()


def test_a_search_leaves_places_to_other_tenants():
    harness = Harness(blocks=128)
    harness.add("before", tenant="other", max_tokens=1)
    harness.step()
    harness.add("a", prompt=6, tenant="one", **SEARCH | {"beam_search": BeamSearch(16), "max_tokens": 30})
    harness.step(4)
    harness.add("b", tenant="other")
    harness.step_until(lambda: "b" not in harness.scheduler._lifecycle.groups)
    assert "a" in harness.scheduler._lifecycle.groups
    harness.finish()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_one_result_or_all_are_cancelled(steps):
    harness = Harness()
    harness.add("a", prompt=6, **SEARCH, n=3)
    for _ in range(steps):
        harness.step()
    assert harness.cancel("a", 1)
    assert not harness.cancel("a", 1)
    assert not harness.cancel("a", 3), "a beam is no choice"
    harness.step()
    assert harness.cancel("a")
    assert not harness.cancel("a")
    ended = harness.take_result()
    assert {output.finish.finish_reason for output in ended} <= {FinishReason.CANCELLED}
    harness.finish()


@pytest.mark.parametrize("prompt", [5, 6])
@pytest.mark.parametrize("keeps_states", [False, True])
def test_a_beam_that_fails_ends_all_results(prompt, keeps_states):
    """With the shorter prompt, other beams of the same step fill a block at that moment, and leave a snapshot."""
    harness = Harness(prefix_caching=True, states=24 if keeps_states else 0)
    harness.add("a", prompt=prompt, **SEARCH, n=2, grammar=failing(3))
    stream = harness.streams["a"]
    for choice in stream.expected:
        stream.cut[choice] = FinishReason.ERROR
    harness.step_until(lambda: not harness.scheduler.has_work())
    assert {finish.error for finish in stream.finish.values()} == {failing(3)}
    check_idle(harness.scheduler)


def test_more_beams_than_places_are_refused():
    harness = Harness(max_num_seqs=3)
    with pytest.raises(InvalidRequestError) as refused:
        harness.scheduler.check(make_request("a", **SEARCH))
    assert str(refused.value) == (
        "beam_search.width: is 4; expected at most 3, as many as run at a time (--max-num-seqs)"
    )
