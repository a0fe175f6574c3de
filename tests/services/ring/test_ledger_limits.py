"""Limits of the ledger over all requests, seen through the attach registry."""

from __future__ import annotations

import pytest

from services.ring.attach_registry import AttachRegistry
from services.ring.errors import Code, Refused
from services.ring.identity import PeerId
from services.ring.ledger import Ledgers
from tests.services.ring.attach_harness import GRACE, MAX_LEDGERS, RecordingCore, code_of, submission


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
    core, peer = RecordingCore(), PeerId("p", 1)
    registry = AttachRegistry(core, Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS, max_logprob_bytes=5000))
    registry.attach(peer, 0.0)
    assert submission(**ask).logprob_bytes == 1100
    registry.submit(peer, submission("1-1", **ask))
    registry.submit(peer, submission("1-2", **ask))
    code, message = code_of(lambda: registry.submit(peer, submission("1-3", **ask)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert message.startswith("logprobs: ")
    registry.submit(peer, submission("1-3"))
    registry.submit(peer, submission("1-2", epoch=2, **ask))  # takes the place of its own
    registry.done(peer, "1-1", 1)
    registry.submit(peer, submission("1-4", **ask))
    for name, epoch in (("1-2", 2), ("1-3", 1), ("1-4", 1)):
        registry.done(peer, name, epoch)
    registry.submit(peer, submission("1-5", prompt_tokens=23, prompt_logprobs=20))  # alone it may take nearly all
    registry.done(peer, "1-5", 1)
    code, message = code_of(lambda: registry.submit(peer, submission("1-6", prompt_tokens=24, prompt_logprobs=20)))
    assert code is Code.INVALID_ARGUMENT, "it would never be taken"
    assert "may take 5040 bytes" in message


def test_what_requests_bring_is_held_up_to_a_size() -> None:
    core, peer = RecordingCore(), PeerId("p", 1)
    registry = AttachRegistry(core, Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS, max_id_bytes=200 * 44))
    registry.attach(peer, 0.0)
    registry.submit(peer, submission("1-1", num_ids=1000))  # alone it may be larger
    code, message = code_of(lambda: registry.submit(peer, submission("1-2", num_ids=1)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert message.startswith("prompt_token_ids: ")
    registry.submit(peer, submission("1-1", epoch=2, num_ids=60))  # takes the place of its own
    registry.submit(peer, submission("1-2", num_ids=40))
    code, _ = code_of(lambda: registry.submit(peer, submission("1-3", num_ids=1)))
    assert code is Code.RESOURCE_EXHAUSTED
    registry.done(peer, "1-2", 1)
    registry.submit(peer, submission("1-3", num_ids=40))


def test_ids_that_are_still_to_be_computed_are_counted_with_those_that_come() -> None:
    asked = submission(num_ids=3, max_tokens=10, choices={0: (), 2: (7, 8)})
    assert asked.id_bytes == 3 * 44 + (10 + 8) * 5
    core, peer = RecordingCore(), PeerId("p", 1)
    ledgers = Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS)
    registry = AttachRegistry(core, ledgers)
    registry.attach(peer, 0.0)
    registry.submit(peer, submission("1-1", num_ids=1, max_tokens=100))
    registry.submit(peer, submission("1-2", num_ids=1, max_tokens=100))
    ledgers.resize(max_logprob_bytes=1, max_id_bytes=1600)  # once the engine knows its memory
    code, message = code_of(lambda: registry.submit(peer, submission("1-3", num_ids=1, max_tokens=100)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert "outputs to come (n times max_tokens)" in message
    code, _ = code_of(lambda: registry.submit(peer, submission("1-3", max_tokens=1, logprobs=0)))
    assert code is Code.INVALID_ARGUMENT


def test_one_tenant_leaves_room_for_others() -> None:
    core, peer = RecordingCore(), PeerId("p", 1)
    registry = AttachRegistry(core, Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS, max_id_bytes=200 * 44))
    registry.attach(peer, 0.0)
    registry.submit(peer, submission("1-1", num_ids=100, tenant="flood"))
    assert code_of(lambda: registry.submit(peer, submission("1-2", num_ids=1, tenant="flood")))[0] is (
        Code.RESOURCE_EXHAUSTED
    )
    registry.submit(peer, submission("1-2", num_ids=50, tenant="other"))
    registry.submit(peer, submission("1-1", epoch=2, num_ids=75, tenant="flood"))  # takes the place of its own
    other = submission("1-1", epoch=3, num_ids=75, tenant="other")
    assert code_of(lambda: registry.submit(peer, other))[0] is Code.RESOURCE_EXHAUSTED
    for name, epoch in (("1-1", 2), ("1-2", 1)):
        registry.done(peer, name, epoch)
    registry.submit(peer, submission("1-3", num_ids=1000, tenant="flood"))


def test_who_finds_no_room_is_told_when_to_come_again() -> None:
    core, peer = RecordingCore(), PeerId("p", 1)
    ledgers = Ledgers(
        orphan_grace=GRACE,
        max_entries=2,
        retry_after_ms=lambda: 4321,
        max_logprob_bytes=1200,
        max_id_bytes=200 * 44,
    )
    registry = AttachRegistry(core, ledgers)
    registry.attach(peer, 0.0)
    scored = {"prompt_tokens": 10, "prompt_logprobs": 10}
    registry.submit(peer, submission("1-1", num_ids=50, **scored))
    for refused in (submission("1-2", num_ids=1000), submission("1-2", **scored)):
        with pytest.raises(Refused) as refusal:
            registry.submit(peer, refused)
        assert refusal.value.status.retry_after_ms == 4321
    registry.submit(peer, submission("1-2"))
    with pytest.raises(Refused) as refusal:
        registry.submit(peer, submission("1-3"))
    assert refusal.value.status.retry_after_ms == 4321
