"""Prompt progress and prompt log probabilities in the attach registry: delivered, replayed, bounded."""

from __future__ import annotations

from services.engine.engine_messages import response_of
from services.ring.attach_registry import AttachRegistry
from services.ring.events import Prefill
from services.ring.identity import PeerId
from services.ring.ledger import Ledgers
from tests.services.ring.attach_harness import GRACE, MAX_LEDGERS, RecordingCore, logprob, submission
from tests.services.ring.token_logprobs import packed


def test_prompt_progress_and_scores_are_replayed(registry: AttachRegistry) -> None:
    core = RecordingCore()
    registry = AttachRegistry(core, Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS))
    peer = PeerId("p", 1)
    link, _ = registry.attach(peer, 0.0)
    registry.submit(peer, submission())
    (core_id,) = core.running
    link.take()
    registry.prefilled(core_id, 2, 1)
    first = link.take()
    registry.prefilled(core_id, None, None)
    registry.prompt_scored(core_id, packed([logprob(1, 1)]))
    second = link.take()
    registry.prompt_scored(core_id, packed([logprob(2, 2)]))
    more = link.take()
    assert first is not None
    assert second is not None
    assert first.prefills == [("1-1", 1, Prefill(5, 2, 1))]
    assert second.prefills == [("1-1", 1, Prefill(5, 5, 1))]
    assert second.prompt_logprobs == [("1-1", 1, 0, packed([logprob(1, 1)]))]
    assert more is not None
    assert more.prompt_logprobs == [("1-1", 1, 1, packed([logprob(2, 2)]))]
    registry.redirect(peer, "1-1", 2, "", {})
    third = link.take()
    assert third is not None
    assert third.prefills == [("1-1", 2, Prefill(5, 5, 1))]
    assert third.prompt_logprobs == [("1-1", 2, 0, packed([logprob(1, 1), logprob(2, 2)]))]
    registry.cancel(peer, "1-1", 2)
    last = link.take()
    assert last is not None
    assert not last.prefills
    assert not last.prompt_logprobs


def test_many_requests_that_are_closed_at_once_come_in_several_frames() -> None:
    core, submitter, reader = RecordingCore(), PeerId("p", 1), PeerId("d", 1)
    registry = AttachRegistry(core, Ledgers(orphan_grace=GRACE, max_entries=100))
    registry.attach(submitter, 0.0)
    link, _ = registry.attach(reader, 0.0)
    names = [f"1-{number}" for number in range(100)]
    for name in names:
        registry.submit(submitter, submission(name, deliver_to="d"))
    link.take()
    for name in names:
        registry.done(submitter, name, 1)
    closed: list[tuple[str, int]] = []
    while (frame := link.take(1000)) is not None:
        assert response_of(frame).ByteSize() <= 1000
        closed += frame.closed
    assert closed == [(name, 1) for name in names]
