"""A submission that the core does not take has one end, and its submitter is told once."""

from __future__ import annotations

from services.ring.attach_registry import AttachRegistry
from services.ring.errors import Code, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from tests.services.ring.attach_harness import RecordingCore, submission


def test_a_refusal_names_the_command_and_is_the_only_end(registry: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), registry._core
    assert isinstance(core, RecordingCore)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission(), in_reply_to=7)
    opened = link.take()
    assert opened is not None
    assert [entry.request_id for entry in opened.opened] == ["1-1"]
    (core_id,) = core.running
    registry.refuse(core_id, Status(Code.RESOURCE_EXHAUSTED, "full"))
    frame = link.take()
    assert frame is not None
    assert [(one.request_id, one.epoch, one.in_reply_to) for one in frame.rejections] == [("1-1", 1, 7)]
    assert not frame.closed
    assert registry.num_ledgers == 0


def test_a_refusal_closes_the_epoch_that_it_superseded(registry: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), registry._core
    assert isinstance(core, RecordingCore)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission())
    link.take()
    registry.submit(peer, submission(epoch=2), in_reply_to=2)
    (core_id,) = core.running
    registry.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no"))
    frame = link.take()
    assert frame is not None
    assert not frame.opened
    assert frame.closed == [("1-1", 1)]
    assert [one.epoch for one in frame.rejections] == [2]


def test_a_refusal_of_what_came_on_an_earlier_stream_names_no_command(registry: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), registry._core
    assert isinstance(core, RecordingCore)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission(), in_reply_to=3)
    registry.detach(link, 1.0)
    link, _ = registry.attach(peer, 1.5)
    (core_id,) = core.running
    registry.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no"))
    frame = link.take()
    assert frame is not None
    assert [one.in_reply_to for one in frame.rejections] == [0]


def test_what_was_cancelled_before_it_is_refused_has_one_end(registry: AttachRegistry) -> None:
    peer, core = PeerId("p", 1), registry._core
    assert isinstance(core, RecordingCore)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission())
    (core_id,) = core.running
    registry.cancel(peer, "1-1", 1)
    assert registry.refuse(core_id, Status(Code.INVALID_ARGUMENT, "no")) is None
    frame = link.take()
    assert frame is not None
    assert [end.finish_reason for *_, end in frame.ends] == [FinishReason.CANCELLED]
    assert not frame.rejections
