"""Who may command what at the engine's door, within which limits, and when requests are forgotten."""

from __future__ import annotations

from services.ring.events import Cause, ChoiceEnd, Code, Status
from services.ring.identity import PeerId
from services.ring.ledger import LedgerEntry
from services.ring.switchboard import MAX_OUTPUT_CONTEXT_BYTES, Switchboard
from tests.services.ring.door import GRACE, MAX_LEDGERS, Core, code_of, submission


def test_a_draining_engine_takes_nothing_new_but_goes_on_with_what_it_has(board: Switchboard) -> None:
    peer = PeerId("p", 1)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    board.draining = True
    assert code_of(lambda: board.submit(peer, submission("1-2")))[0] is Code.UNAVAILABLE
    board.redirect(peer, "1-1", 2, "", {})
    frame = link.take()
    assert frame is not None
    assert [entry.epoch for entry in frame.opened] == [2]


def test_a_submitter_that_was_superseded_cannot_submit(board: Switchboard) -> None:
    """Its commands may still be read when its newer life has attached; nobody would ever say Done."""
    old, new = PeerId("p", 1), PeerId("p", 2)
    board.attach(old, 0.0)
    board.attach(new, 0.0)
    assert code_of(lambda: board.submit(old, submission()))[0] is Code.ABORTED
    assert board.num_ledgers == 0


def test_an_output_context_has_a_limit(board: Switchboard) -> None:
    peer = PeerId("p", 1)
    board.attach(peer, 0.0)
    board.submit(peer, submission(output_context=b"x" * MAX_OUTPUT_CONTEXT_BYTES))
    too_long = submission("1-2", output_context=b"x" * (MAX_OUTPUT_CONTEXT_BYTES + 1))
    code, message = code_of(lambda: board.submit(peer, too_long))
    assert code is Code.INVALID_ARGUMENT
    assert "output_context" in message


def test_what_a_submitter_that_came_back_does_not_claim_is_forgotten(board: Switchboard) -> None:
    """A Done may have been lost with its old stream."""
    peer = PeerId("p", 1)
    link, _ = board.attach(peer, 0.0)
    board.attach(PeerId("d", 1), 0.0)
    for name in ("1-1", "1-2", "1-3"):
        board.submit(peer, submission(name, deliver_to="d"))
    board.submit(peer, submission("1-4"))
    board.detach(link, 1.0)
    board.attach(peer, 1.5)
    board.submit(peer, submission("1-1", 2, deliver_to="d"))
    board.redirect(peer, "1-2", 2, "d", {})
    board.expire(1.0 + GRACE)
    assert board.num_ledgers == 3, "what it submitted or redirected, and what is delivered to itself"
    assert code_of(lambda: board.redirect(peer, "1-3", 2, "d", {}))[0] is Code.NOT_FOUND


def test_a_redirect_cannot_name_choices_that_there_are_not(board: Switchboard) -> None:
    peer = PeerId("p", 1)
    board.attach(peer, 0.0)
    board.submit(peer, submission())
    code, message = code_of(lambda: board.redirect(peer, "1-1", 2, "", {0: 0, 5: 1}))
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith("delivered: ")
    board.redirect(peer, "1-1", 2, "", {0: 0})


def test_what_is_forgotten_is_told_with_its_end_if_it_has_one() -> None:
    told: dict[str, Cause | None] = {}

    def on_removed(entry: LedgerEntry) -> None:
        assert entry.request_id not in told
        end = entry.choices[0].end
        told[entry.request_id] = end.cause if end is not None else None

    core, peer = Core(), PeerId("p", 1)
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS, on_removed=on_removed)
    link, _ = board.attach(peer, 0.0)
    for name in ("1-1", "1-2", "1-3", "1-4"):
        board.submit(peer, submission(name))
    ended, refused = sorted(name for name in core.names if name.startswith(("1-2", "1-4")))
    board.progress(ended, 0, [7], [], ChoiceEnd(Cause.LENGTH, 1))
    assert told == {}
    board.done(peer, "1-1", 1)
    board.done(peer, "1-2", 1)
    board.refuse(refused, Status(Code.RESOURCE_EXHAUSTED, "full"))
    board.cancel(peer, "1-3", 1)
    board.detach(link, 1.0)
    board.expire(1.0 + GRACE)
    assert told == {"1-1": None, "1-2": Cause.LENGTH, "1-4": None, "1-3": Cause.CANCELLED}
