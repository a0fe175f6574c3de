"""Prompt progress and log probabilities at the engine's door: carried, replayed, bounded."""

from __future__ import annotations

from services.engine.frames import response_of
from services.ring.events import Code, Prefill
from services.ring.identity import PeerId
from services.ring.logprobs import PackedLogprobs
from services.ring.switchboard import Switchboard
from tests.services.ring.door import GRACE, MAX_LEDGERS, Core, code_of, logprob, submission


def test_prompt_progress_and_scores_are_replayed(board: Switchboard) -> None:
    core = Core()
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS)
    peer = PeerId("p", 1)
    link, _ = board.attach(peer, 0.0)
    board.submit(peer, submission())
    (core_id,) = core.running
    link.take()
    board.prefilled(core_id, 2, 1)
    first = link.take()
    board.prefilled(core_id, None, None)
    board.prompt_scored(core_id, [logprob(1, 1)])
    second = link.take()
    board.prompt_scored(core_id, [logprob(2, 2)])
    more = link.take()
    assert first is not None
    assert second is not None
    assert first.prefills == [("1-1", 1, Prefill(5, 2, 1))]
    assert second.prefills == [("1-1", 1, Prefill(5, 5, 1))]
    assert second.prompt_logprobs == [("1-1", 1, 0, PackedLogprobs.of([logprob(1, 1)]))]
    assert more is not None
    assert more.prompt_logprobs == [("1-1", 1, 1, PackedLogprobs.of([logprob(2, 2)]))]
    board.redirect(peer, "1-1", 2, "", {})
    third = link.take()
    assert third is not None
    assert third.prefills == [("1-1", 2, Prefill(5, 5, 1))]
    assert third.prompt_logprobs == [("1-1", 2, 0, PackedLogprobs.of([logprob(1, 1), logprob(2, 2)]))]
    board.cancel(peer, "1-1", 2)
    last = link.take()
    assert last is not None
    assert not last.prefills
    assert not last.prompt_logprobs


def test_log_probabilities_of_prompts_are_held_up_to_a_size() -> None:
    core, peer = Core(), PeerId("p", 1)
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS, max_prompt_logprob_bytes=4000)
    board.attach(peer, 0.0)
    ask = {"prompt_tokens": 10, "prompt_logprobs": 10}  # 880 bytes
    board.submit(peer, submission("1-1", **ask))
    board.submit(peer, submission("1-2", **ask))
    code, message = code_of(lambda: board.submit(peer, submission("1-3", **ask)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert message.startswith("prompt_logprobs: ")
    board.submit(peer, submission("1-3"))
    board.submit(peer, submission("1-2", epoch=2, **ask))  # takes the place of its own
    board.done(peer, "1-1", 1)
    board.submit(peer, submission("1-4", **ask))
    for name, epoch in (("1-2", 2), ("1-3", 1), ("1-4", 1)):
        board.done(peer, name, epoch)
    board.submit(peer, submission("1-5", prompt_tokens=1000, prompt_logprobs=20))  # alone it may be any size


def test_what_requests_bring_is_held_up_to_a_size() -> None:
    core, peer = Core(), PeerId("p", 1)
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS, max_id_bytes=200 * 40)
    board.attach(peer, 0.0)
    board.submit(peer, submission("1-1", num_ids=1000))  # alone it may be larger
    code, message = code_of(lambda: board.submit(peer, submission("1-2", num_ids=1)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert message.startswith("prompt_token_ids: ")
    board.submit(peer, submission("1-1", epoch=2, num_ids=60))  # takes the place of its own
    board.submit(peer, submission("1-2", num_ids=40))
    code, _ = code_of(lambda: board.submit(peer, submission("1-3", num_ids=1)))
    assert code is Code.RESOURCE_EXHAUSTED
    board.done(peer, "1-2", 1)
    board.submit(peer, submission("1-3", num_ids=40))


def test_one_tenant_leaves_room_for_others() -> None:
    core, peer = Core(), PeerId("p", 1)
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=MAX_LEDGERS, max_id_bytes=200 * 40)
    board.attach(peer, 0.0)
    board.submit(peer, submission("1-1", num_ids=100, tenant="flood"))
    assert code_of(lambda: board.submit(peer, submission("1-2", num_ids=1, tenant="flood")))[0] is (
        Code.RESOURCE_EXHAUSTED
    )
    board.submit(peer, submission("1-2", num_ids=50, tenant="other"))
    board.submit(peer, submission("1-1", epoch=2, num_ids=75, tenant="flood"))  # takes the place of its own
    other = submission("1-1", epoch=3, num_ids=75, tenant="other")
    assert code_of(lambda: board.submit(peer, other))[0] is Code.RESOURCE_EXHAUSTED
    for name, epoch in (("1-1", 2), ("1-2", 1)):
        board.done(peer, name, epoch)
    board.submit(peer, submission("1-3", num_ids=1000, tenant="flood"))


def test_many_requests_that_are_closed_at_once_come_in_several_frames() -> None:
    core, submitter, reader = Core(), PeerId("p", 1), PeerId("d", 1)
    board = Switchboard(core, orphan_grace=GRACE, max_ledgers=100)
    board.attach(submitter, 0.0)
    link, _ = board.attach(reader, 0.0)
    names = [f"1-{number}" for number in range(100)]
    for name in names:
        board.submit(submitter, submission(name, deliver_to="d"))
    link.take()
    for name in names:
        board.done(submitter, name, 1)
    closed: list[tuple[str, int]] = []
    while (frame := link.take(1000)) is not None:
        assert response_of(frame).ByteSize() <= 1000
        closed += frame.closed
    assert closed == [(name, 1) for name in names]
