"""The log of one choice: what is added, where it ends, what a stop cuts; and the limits of all requests together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ring.errors import Code
from services.ring.events import ChoiceEnd, FinishReason
from services.ring.ledger import ChoiceLog
from services.ring.logprobs import PackedLogprobs
from tests.services.ring.attach_harness import Registry, submission
from tests.services.ring.token_logprobs import TokenLogprob, packed

ids = st.lists(st.integers(0, 99), max_size=8)


def scores(tokens: list[int]) -> PackedLogprobs:
    return packed(TokenLogprob(-float(token), 1) for token in tokens)


@given(resumed=ids, computed=ids, more=ids, end=st.none() | st.sampled_from(FinishReason), position=st.integers(-1, 18))
def test_a_stop_wins_over_ends_at_or_behind_it(
    resumed: list[int], computed: list[int], more: list[int], end: FinishReason | None, position: int
) -> None:
    log = ChoiceLog(resumed, keeps_logprobs=True)
    log.append(computed, scores(computed))
    whole = resumed + computed
    if end is not None:
        log.finish(ChoiceEnd(end, len(whole)))
    stopped = log.stop_at(position)
    assert stopped == (1 <= position <= len(whole))
    kept = whole[:position] if stopped else whole
    assert list(log.ids) == kept
    assert log.logprobs == scores(kept[len(resumed) :])
    if stopped:
        assert log.end == ChoiceEnd(FinishReason.STOP, position)
    else:
        assert log.end == (None if end is None else ChoiceEnd(end, len(whole)))
    before = log.end
    log.append(more, scores(more))
    log.finish(ChoiceEnd(FinishReason.CANCELLED, 0))
    if before is not None:
        assert list(log.ids) == kept, "nothing is added behind an end"
        assert log.end == before, "an end stands"


def test_an_end_before_the_stop_wins() -> None:
    log = ChoiceLog([1, 2, 3], keeps_logprobs=False)
    log.finish(ChoiceEnd(FinishReason.LENGTH, 2))
    assert not log.stop_at(3)
    assert log.end == ChoiceEnd(FinishReason.LENGTH, 2)


# Limits over all requests, as the attach registry applies them


@pytest.mark.parametrize(
    "ask",
    [
        {"prompt_tokens": 10, "prompt_logprobs": 10},
        {"max_tokens": 10, "logprobs": 10},
        {"max_tokens": 6, "logprobs": 10, "choices": {0: (), 2: (1, 2)}},
        {"max_tokens": 9, "logprobs": 10, "prompt_tokens": 11, "prompt_logprobs": 0},
    ],
    ids=["of the prompt", "of the output", "of choices that go on", "of both"],
)
def test_log_probabilities_are_held_up_to_a_size(ask: dict[str, object]) -> None:
    ring = Registry(max_logprob_bytes=5000)
    assert submission(**ask).logprob_bytes == 1100
    ring.submit("1-1", **ask)
    ring.submit("1-2", **ask)
    refused = ring.refusal("1-3", **ask)
    assert (refused.code, refused.message.partition(":")[0]) == (Code.RESOURCE_EXHAUSTED, "logprobs")
    ring.submit("1-3")
    ring.submit("1-2", 2, **ask)  # takes the place of its own
    ring.done("1-1")
    ring.submit("1-4", **ask)
    for name, epoch in (("1-2", 2), ("1-3", 1), ("1-4", 1)):
        ring.done(name, epoch)
    ring.submit("1-5", prompt_tokens=23, prompt_logprobs=20)  # alone it may take nearly all
    ring.done("1-5")
    refused = ring.refusal("1-6", prompt_tokens=24, prompt_logprobs=20)
    assert refused.code is Code.INVALID_ARGUMENT, "it would never be taken"
    assert "may take 5040 bytes" in refused.message


def test_what_requests_bring_is_held_up_to_a_size() -> None:
    ring = Registry(max_id_bytes=200 * 44)
    ring.submit("1-1", num_ids=1000)  # alone it may be larger
    refused = ring.refusal("1-2", num_ids=1)
    assert (refused.code, refused.message.partition(":")[0]) == (Code.RESOURCE_EXHAUSTED, "prompt_token_ids")
    ring.submit("1-1", 2, num_ids=60)  # takes the place of its own
    ring.submit("1-2", num_ids=40)
    assert ring.refusal("1-3", num_ids=1).code is Code.RESOURCE_EXHAUSTED
    ring.done("1-2")
    ring.submit("1-3", num_ids=40)


def test_ids_that_are_still_to_be_computed_are_counted_with_those_that_come() -> None:
    assert submission(num_ids=3, max_tokens=10, choices={0: (), 2: (7, 8)}).id_bytes == 3 * 44 + (10 + 8) * 5
    assert submission(num_ids=3, max_tokens=10, beams=4).id_bytes == 3 * 44 + 10 * 5 + 4 * 10 * 16
    ring = Registry()
    ring.submit("1-1", num_ids=1, max_tokens=100)
    ring.submit("1-2", num_ids=1, max_tokens=100)
    ring.ledgers.resize(max_logprob_bytes=1, max_id_bytes=1600)  # once the engine knows its memory
    refused = ring.refusal("1-3", num_ids=1, max_tokens=100)
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert "outputs to come (n, or the beams, times max_tokens)" in refused.message
    assert ring.refusal("1-3", max_tokens=1, logprobs=0).code is Code.INVALID_ARGUMENT


def test_one_tenant_leaves_room_for_others() -> None:
    ring = Registry(max_id_bytes=200 * 44)
    ring.submit("1-1", num_ids=100, tenant="flood")
    assert ring.refusal("1-2", num_ids=1, tenant="flood").code is Code.RESOURCE_EXHAUSTED
    ring.submit("1-2", num_ids=50, tenant="other")
    ring.submit("1-1", 2, num_ids=75, tenant="flood")  # takes the place of its own
    assert ring.refusal("1-1", 3, num_ids=75, tenant="other").code is Code.RESOURCE_EXHAUSTED
    ring.done("1-1", 2)
    ring.done("1-2")
    ring.submit("1-3", num_ids=1000, tenant="flood")


def test_who_finds_no_room_is_told_when_to_come_again() -> None:
    ring = Registry(max_entries=2, retry_after_ms=lambda: 4321, max_logprob_bytes=1200, max_id_bytes=200 * 44)
    scored = {"prompt_tokens": 10, "prompt_logprobs": 10}
    ring.submit("1-1", num_ids=50, **scored)
    assert ring.refusal("1-2", num_ids=1000).retry_after_ms == 4321
    assert ring.refusal("1-2", **scored).retry_after_ms == 4321
    ring.submit("1-2")
    assert ring.refusal("1-3").retry_after_ms == 4321


def test_results_of_inputs_are_charged_until_their_request_is_done() -> None:
    ring = Registry()
    ring.ledgers.resize(max_logprob_bytes=1, max_id_bytes=1 << 20, max_pooled_bytes=1000)
    ring.submit("1-1", pooled_bytes=600)
    refused = ring.refusal("1-2", pooled_bytes=600)
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert "pooling: this request takes 600 bytes of results of inputs" in refused.message
    ring.submit("1-1", 2, pooled_bytes=300)  # takes the place of its own
    ring.submit("1-2", pooled_bytes=200)
    ring.done("1-1", 2)
    ring.done("1-2")
    refused = ring.refusal("1-3", pooled_bytes=1001)
    assert refused.code is Code.INVALID_ARGUMENT, "it would never fit"
    assert "pooling.inputs: results of 1001 bytes: this engine has memory for 1000; send fewer" in refused.message
    ring.submit("1-3", pooled_bytes=1000)
