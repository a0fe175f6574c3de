"""The attach registry: how many peers it takes, who may command what, and when requests are forgotten."""

from __future__ import annotations

import gc

import pytest

from services.engine.engine_messages import response_of
from services.ring.attach_registry import MAX_PEERS
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason, Prefill
from services.ring.identity import PeerId
from services.ring.ledger import MAX_OUTPUT_CONTEXT_BYTES, LedgerEntry
from tests.services.ring.attach_harness import GRACE, Registry, code_of, logprob
from tests.services.ring.token_logprobs import packed

P, D = PeerId("p", 1), PeerId("d", 1)


# Peers


def test_so_many_peers_and_no_more_are_attached() -> None:
    ring = Registry(*(f"p{number}" for number in range(MAX_PEERS)))
    assert code_of(lambda: ring.registry.attach(PeerId("more", 1), 0.0))[0] is Code.RESOURCE_EXHAUSTED
    ring.registry.attach(PeerId("p0", 2), 0.0)  # takes its own place
    ring.registry.detach(ring.links["p1"], 0.0)
    ring.registry.attach(PeerId("more", 1), 0.0)


@pytest.mark.parametrize("superseded", [False, True])
def test_a_stream_that_is_over_holds_nothing(superseded: bool) -> None:
    """gRPC may keep it for as long as its peer takes nothing."""
    ring = Registry()
    ring.submit()
    (entry,) = ring.ledgers
    if superseded:
        ring.registry.attach(PeerId("p", 2), 1.0)
    else:
        ring.registry.detach(ring.links["p"], 1.0)
        ring.registry.expire(1.0 + GRACE)
    assert ring.registry.num_ledgers == 0
    assert not ring.links["p"].pending
    assert ring.links["p"].take() is None
    assert not [one for one in gc.get_referrers(entry) if type(one).__name__ == "_Cursor"]


@pytest.mark.parametrize("was_gone", [True, False])
def test_what_a_submitter_that_came_back_does_not_claim_is_forgotten(was_gone: bool) -> None:
    """A Done may have been lost with its old stream, whether that ended before or is superseded."""
    ring = Registry("p", "d")
    for name in ("1-1", "1-2", "1-3"):
        ring.submit(name, deliver_to="d")
    ring.submit("1-4")
    if was_gone:
        ring.registry.detach(ring.links["p"], 1.0)
    ring.registry.attach(P, 1.5 if was_gone else 1.0)
    ring.submit("1-1", 2, deliver_to="d")
    ring.redirect("1-2", 2, "d")
    ring.registry.expire(1.0 + GRACE)
    assert ring.registry.num_ledgers == 3, "what it submitted or redirected, and what is delivered to itself"
    assert code_of(lambda: ring.redirect("1-3", 2, "d"))[0] is Code.NOT_FOUND


def test_the_end_of_a_superseded_stream_changes_nothing() -> None:
    """It comes when the newer one is there already."""
    ring = Registry()
    new, superseded = ring.registry.attach(P, 1.0)
    assert superseded is ring.links["p"]
    ring.submit()
    ring.registry.detach(superseded, 2.0)
    assert ring.registry.attached() == [P]
    ring.registry.expire(2.0 + GRACE)
    assert ring.registry.num_ledgers == 1
    ring.registry.detach(new, 5.0)
    ring.registry.expire(5.0 + GRACE)
    assert (ring.registry.attached(), ring.registry.num_ledgers) == ([], 0)


# Commands


def test_a_draining_engine_takes_nothing_new_but_goes_on_with_what_it_has() -> None:
    ring = Registry()
    ring.submit()
    ring.registry.draining = True
    assert ring.refusal("1-2").code is Code.UNAVAILABLE
    ring.redirect("1-1", 2)
    assert [entry.epoch for entry in ring.take().opened] == [2]


def test_a_submitter_that_was_superseded_cannot_submit() -> None:
    """Its commands may still be read when its newer life has attached; nobody would ever say Done."""
    ring = Registry()
    ring.registry.attach(PeerId("p", 2), 0.0)
    assert ring.refusal().code is Code.ABORTED
    assert ring.registry.num_ledgers == 0


def test_an_output_context_has_a_limit() -> None:
    ring = Registry()
    ring.submit(output_context=b"x" * MAX_OUTPUT_CONTEXT_BYTES)
    refused = ring.refusal("1-2", output_context=b"x" * (MAX_OUTPUT_CONTEXT_BYTES + 1))
    assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, "output_context")


@pytest.mark.parametrize("request_id", ["2-1", "1", "x-1", "1-1-1", "", "1-" + "9" * 100])
def test_a_submitter_names_requests_of_its_own_life_only(request_id: str) -> None:
    ring = Registry()
    refused = ring.refusal(request_id)
    assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, "request_id")
    assert ring.registry.num_ledgers == 0


def test_a_redirect_cannot_name_choices_that_there_are_not() -> None:
    ring = Registry()
    ring.submit()
    code, message = code_of(lambda: ring.redirect("1-1", 2, "", {0: 0, 5: 1}))
    assert (code, message.partition(":")[0]) == (Code.INVALID_ARGUMENT, "delivered")
    ring.redirect("1-1", 2, "", {0: 0})


def test_what_is_forgotten_is_told_with_its_end_if_it_has_one() -> None:
    told: dict[str, FinishReason | None] = {}

    def on_removed(entry: LedgerEntry) -> None:
        assert entry.request_id not in told
        end = entry.choices[0].end
        told[entry.request_id] = end.finish_reason if end is not None else None

    ring = Registry(on_removed=on_removed)
    _, ended, _, refused = (ring.submit(name) for name in ("1-1", "1-2", "1-3", "1-4"))
    ring.registry.progress(ended, 0, [7], None, ChoiceEnd(FinishReason.LENGTH, 1))
    assert told == {}
    ring.done("1-1")
    ring.done("1-2")
    ring.registry.refuse(refused, Status(Code.RESOURCE_EXHAUSTED, "full"))
    ring.registry.cancel(P, "1-3", 1)
    ring.registry.detach(ring.links["p"], 1.0)
    ring.registry.expire(1.0 + GRACE)
    assert told == {"1-1": None, "1-2": FinishReason.LENGTH, "1-4": None, "1-3": FinishReason.CANCELLED}


def test_many_requests_that_are_closed_at_once_come_in_several_frames() -> None:
    ring = Registry("p", "d", max_entries=100)
    names = [f"1-{number}" for number in range(100)]
    for name in names:
        ring.submit(name, deliver_to="d")
    ring.take("d")
    for name in names:
        ring.done(name)
    closed: list[tuple[str, int]] = []
    while (frame := ring.links["d"].take(1000)) is not None:
        assert response_of(frame).ByteSize() <= 1000
        closed += frame.closed
    assert closed == [(name, 1) for name in names]


# Reports of the core


def test_prompt_progress_and_scores_are_replayed() -> None:
    ring = Registry()
    core_id = ring.submit()
    ring.take()
    ring.registry.prefilled(core_id, 2, 1)
    assert ring.take().prefills == [("1-1", 1, Prefill(5, 2, 1))]
    ring.registry.prefilled(core_id, None, None)
    ring.registry.prompt_logprobs(core_id, packed([logprob(1, 1)]))
    frame = ring.take()
    assert frame.prefills == [("1-1", 1, Prefill(5, 5, 1))]
    assert frame.prompt_logprobs == [("1-1", 1, 0, packed([logprob(1, 1)]))]
    ring.registry.prompt_logprobs(core_id, packed([logprob(2, 2)]))
    assert ring.take().prompt_logprobs == [("1-1", 1, 1, packed([logprob(2, 2)]))]
    ring.redirect("1-1", 2)
    frame = ring.take()
    assert frame.prefills == [("1-1", 2, Prefill(5, 5, 1))]
    assert frame.prompt_logprobs == [("1-1", 2, 0, packed([logprob(1, 1), logprob(2, 2)]))]
    ring.registry.cancel(P, "1-1", 2)
    frame = ring.take()
    assert not frame.prefills
    assert not frame.prompt_logprobs


def test_a_refusal_names_the_command_and_is_the_only_end() -> None:
    ring = Registry()
    core_id = ring.submit(in_reply_to=7)
    assert [entry.request_id for entry in ring.take().opened] == ["1-1"]
    ring.registry.refuse(core_id, Status(Code.RESOURCE_EXHAUSTED, "full"))
    frame = ring.take()
    assert [(one.request_id, one.epoch, one.in_reply_to) for one in frame.rejections] == [("1-1", 1, 7)]
    assert not frame.closed
    assert ring.registry.num_ledgers == 0


def test_a_refusal_of_what_came_on_an_earlier_stream_names_no_command() -> None:
    ring = Registry()
    core_id = ring.submit(in_reply_to=3)
    ring.registry.detach(ring.links["p"], 1.0)
    ring.links["p"], _ = ring.registry.attach(P, 1.5)
    ring.registry.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no"))
    assert [one.in_reply_to for one in ring.take().rejections] == [0]


def test_what_was_cancelled_before_it_is_refused_has_one_end() -> None:
    ring = Registry()
    core_id = ring.submit()
    ring.registry.cancel(P, "1-1", 1)
    assert ring.registry.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no")) is None
    frame = ring.take()
    assert [end.finish_reason for *_, end in frame.ends] == [FinishReason.CANCELLED]
    assert not frame.rejections
