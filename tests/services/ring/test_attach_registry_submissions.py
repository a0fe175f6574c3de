"""Commands to the attach registry: who may send them, their limits, and when requests are forgotten."""

from __future__ import annotations

import pytest

from services.ring.attach_registry import AttachRegistry
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason
from services.ring.identity import PeerId
from services.ring.ledger import MAX_OUTPUT_CONTEXT_BYTES, LedgerEntry, Ledgers
from tests.services.ring.attach_harness import GRACE, MAX_LEDGERS, RecordingCore, code_of, submission


def test_a_draining_engine_takes_nothing_new_but_goes_on_with_what_it_has(registry: AttachRegistry) -> None:
    peer = PeerId("p", 1)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission())
    registry.draining = True
    assert code_of(lambda: registry.submit(peer, submission("1-2")))[0] is Code.UNAVAILABLE
    registry.redirect(peer, "1-1", 2, "", {})
    frame = link.take()
    assert frame is not None
    assert [entry.epoch for entry in frame.opened] == [2]


def test_a_submitter_that_was_superseded_cannot_submit(registry: AttachRegistry) -> None:
    """Its commands may still be read when its newer life has attached; nobody would ever say Done."""
    old, new = PeerId("p", 1), PeerId("p", 2)
    registry.attach(old, 0.0)
    registry.attach(new, 0.0)
    assert code_of(lambda: registry.submit(old, submission()))[0] is Code.ABORTED
    assert registry.num_ledgers == 0


def test_an_output_context_has_a_limit(registry: AttachRegistry) -> None:
    peer = PeerId("p", 1)
    registry.attach(peer, 0.0)
    registry.submit(peer, submission(output_context=b"x" * MAX_OUTPUT_CONTEXT_BYTES))
    too_long = submission("1-2", output_context=b"x" * (MAX_OUTPUT_CONTEXT_BYTES + 1))
    code, message = code_of(lambda: registry.submit(peer, too_long))
    assert code is Code.INVALID_ARGUMENT
    assert "output_context" in message


@pytest.mark.parametrize("was_gone", [True, False])
def test_what_a_submitter_that_came_back_does_not_claim_is_forgotten(registry: AttachRegistry, was_gone: bool) -> None:
    """A Done may have been lost with its old stream, whether that ended before or is superseded."""
    peer = PeerId("p", 1)
    link, _ = registry.attach(peer, 0.0)
    registry.attach(PeerId("d", 1), 0.0)
    for name in ("1-1", "1-2", "1-3"):
        registry.submit(peer, submission(name, deliver_to="d"))
    registry.submit(peer, submission("1-4"))
    if was_gone:
        registry.detach(link, 1.0)
    registry.attach(peer, 1.5 if was_gone else 1.0)
    registry.submit(peer, submission("1-1", 2, deliver_to="d"))
    registry.redirect(peer, "1-2", 2, "d", {})
    registry.expire(1.0 + GRACE)
    assert registry.num_ledgers == 3, "what it submitted or redirected, and what is delivered to itself"
    assert code_of(lambda: registry.redirect(peer, "1-3", 2, "d", {}))[0] is Code.NOT_FOUND


def test_the_end_of_a_superseded_stream_changes_nothing(registry: AttachRegistry) -> None:
    """It comes when the newer one is there already."""
    peer = PeerId("p", 1)
    old, _ = registry.attach(peer, 0.0)
    new, superseded = registry.attach(peer, 1.0)
    assert superseded is old
    registry.submit(peer, submission())
    registry.detach(old, 2.0)
    assert registry.attached() == [peer]
    registry.expire(2.0 + GRACE)
    assert registry.num_ledgers == 1
    registry.detach(new, 5.0)
    registry.expire(5.0 + GRACE)
    assert (registry.attached(), registry.num_ledgers) == ([], 0)


@pytest.mark.parametrize(
    ("by", "epoch", "choice", "position", "stops"),
    [
        ("d", 2, 0, 2, True),
        ("p", 2, 0, 2, False),
        ("d", 1, 0, 2, False),
        ("d", 3, 0, 2, False),
        ("d", 2, 1, 2, False),
        ("d", 2, 0, 0, False),
        ("d", 2, 0, 4, False),
    ],
)
def test_only_the_receiver_stops_a_choice_and_where_it_has_tokens(
    by: str, epoch: int, choice: int, position: int, stops: bool
) -> None:
    core = RecordingCore()
    registry = AttachRegistry(core, Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS))
    for name in ("p", "d"):
        registry.attach(PeerId(name, 1), 0.0)
    registry.submit(PeerId("p", 1), submission("1-1", 2, deliver_to="d"))
    (core_id,) = core.running
    registry.progress(core_id, 0, [7, 8, 9], [], None)
    registry.stop(PeerId(by, 1), "1-1", epoch, choice, position)
    assert registry.num_unfinished == (0 if stops else 1)
    assert core.running == {core_id: set() if stops else {0}}


@pytest.mark.parametrize("command", ["cancel", "done"])
@pytest.mark.parametrize(("by", "epoch", "ends"), [("p", 2, True), ("p", 3, True), ("p", 1, False), ("d", 2, False)])
def test_only_the_submitter_ends_a_request_and_not_by_an_earlier_epoch(
    registry: AttachRegistry, command: str, by: str, epoch: int, ends: bool
) -> None:
    for name in ("p", "d"):
        registry.attach(PeerId(name, 1), 0.0)
    registry.submit(PeerId("p", 1), submission("1-1", 2, deliver_to="d"))
    getattr(registry, command)(PeerId(by, 1), "1-1", epoch)
    assert registry.num_unfinished == (0 if ends else 1)


@pytest.mark.parametrize("request_id", ["2-1", "1", "x-1", "1-1-1", "", "1-" + "9" * 100])
def test_a_submitter_names_requests_of_its_own_life_only(registry: AttachRegistry, request_id: str) -> None:
    registry.attach(PeerId("p", 1), 0.0)
    code, message = code_of(lambda: registry.submit(PeerId("p", 1), submission(request_id)))
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith("request_id: ")
    assert registry.num_ledgers == 0


def test_a_link_that_is_cut_again_and_again_does_not_prolong_the_grace(registry: AttachRegistry) -> None:
    peer = PeerId("p", 1)
    registry.attach(PeerId("d", 1), 0.0)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission(deliver_to="d"))
    for now in (1.0, 1.5, 2.0, 2.5):
        registry.detach(link, now)
        link, _ = registry.attach(peer, now)
    registry.expire(0.9 + GRACE)
    assert registry.num_ledgers == 1
    registry.expire(1.0 + GRACE)
    assert registry.num_ledgers == 0


def test_a_redirect_cannot_name_choices_that_there_are_not(registry: AttachRegistry) -> None:
    peer = PeerId("p", 1)
    registry.attach(peer, 0.0)
    registry.submit(peer, submission())
    code, message = code_of(lambda: registry.redirect(peer, "1-1", 2, "", {0: 0, 5: 1}))
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith("delivered: ")
    registry.redirect(peer, "1-1", 2, "", {0: 0})


def test_what_is_forgotten_is_told_with_its_end_if_it_has_one() -> None:
    told: dict[str, FinishReason | None] = {}

    def on_removed(entry: LedgerEntry) -> None:
        assert entry.request_id not in told
        end = entry.choices[0].end
        told[entry.request_id] = end.finish_reason if end is not None else None

    core, peer = RecordingCore(), PeerId("p", 1)
    registry = AttachRegistry(core, Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS), on_removed=on_removed)
    link, _ = registry.attach(peer, 0.0)
    for name in ("1-1", "1-2", "1-3", "1-4"):
        registry.submit(peer, submission(name))
    ended, refused = sorted(name for name in core.names if name.startswith(("1-2", "1-4")))
    registry.progress(ended, 0, [7], [], ChoiceEnd(FinishReason.LENGTH, 1))
    assert told == {}
    registry.done(peer, "1-1", 1)
    registry.done(peer, "1-2", 1)
    registry.refuse(refused, Status(Code.RESOURCE_EXHAUSTED, "full"))
    registry.cancel(peer, "1-3", 1)
    registry.detach(link, 1.0)
    registry.expire(1.0 + GRACE)
    assert told == {"1-1": None, "1-2": FinishReason.LENGTH, "1-4": None, "1-3": FinishReason.CANCELLED}
