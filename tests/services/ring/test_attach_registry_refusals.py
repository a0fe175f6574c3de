"""A submission that the core does not take has one end, and its submitter is told once."""

from __future__ import annotations

from services.ring.attach_registry import AttachRegistry
from services.ring.errors import Code, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from tests.services.ring.attach_harness import Core, submission


def test_a_refusal_names_the_command_and_is_the_only_end(board: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission(), in_reply_to=7)
    opened = link.take()
    assert opened is not None
    assert [entry.request_id for entry in opened.opened] == ["1-1"]
    (core_id,) = core.running
    board.refuse(core_id, Status(Code.RESOURCE_EXHAUSTED, "full"))
    frame = link.take()
    assert frame is not None
    assert [(one.request_id, one.epoch, one.in_reply_to) for one in frame.rejections] == [("1-1", 1, 7)]
    assert not frame.closed
    assert board.num_ledgers == 0


def test_a_refusal_closes_the_epoch_that_it_superseded(board: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    link.take()
    board.submit(peer, submission(epoch=2), in_reply_to=2)
    (core_id,) = core.running
    board.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no"))
    frame = link.take()
    assert frame is not None
    assert not frame.opened
    assert frame.closed == [("1-1", 1)]
    assert [one.epoch for one in frame.rejections] == [2]


def test_a_refusal_of_what_came_on_an_earlier_stream_names_no_command(board: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission(), in_reply_to=3)
    board.detach(link, 1.0)
    link, _ = board.attach(peer, 1.5)
    (core_id,) = core.running
    board.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no"))
    frame = link.take()
    assert frame is not None
    assert [one.in_reply_to for one in frame.rejections] == [0]


def test_what_was_cancelled_before_it_is_refused_has_one_end(board: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), board._core
    assert isinstance(core, Core)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    (core_id,) = core.running
    board.cancel(peer, "1-1", 1)
    assert board.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no")) is None
    frame = link.take()
    assert frame is not None
    assert [end.finish_reason for *_, end in frame.ends] == [FinishReason.CANCELLED]
    assert not frame.rejections
