"""The attach registry against a model that keeps every request whole.

Peers attach, leave and come back in newer incarnations, send valid and invalid commands, and take frames of any size.
Every reader must be able to rebuild the engine's log from its own stream.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.ring.attach_registry import AttachRegistry
from services.ring.errors import Code, Refused, Status
from services.ring.events import ChoiceEnd, FinishReason
from services.ring.identity import PeerId
from services.ring.ledger import LedgerEntry, Ledgers
from tests.services.ring.attach_harness import (
    GRACE,
    MAX_LEDGERS,
    ExpectedRequest,
    PeerReader,
    RecordingCore,
    logprob,
    submission,
)
from tests.services.ring.token_logprobs import packed, unpacked

NAMES = ("p", "d", "q")
names = st.sampled_from(NAMES)
counters = st.integers(1, 3)
MAX_TOKENS, PROMPT_TOKENS = 20, 9
choices = st.integers(0, 2)
LIMITS = st.sampled_from([1, 200, 500, 1 << 20])


def bytes_of(entry: LedgerEntry) -> int:
    """What its log probabilities take."""
    packed = [entry.prompt_logprobs, *(log.logprobs for log in entry.choices.values())]
    arrays = [getattr(p, name) for p in packed if p for name in ("logprobs", "ranks", "top_ids", "top_logprobs")]
    return sum(len(each) * each.itemsize for each in arrays)


class AttachRegistryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = RecordingCore()
        self.ledgers = Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS, max_logprob_bytes=10**9)
        self.left: list[str] = []
        """Core ids of which the core holds nothing any more, as it was told."""
        self.registry = AttachRegistry(self.core, self.ledgers, on_left_core=self.left.append)
        self.now = 0.0
        self.streams: dict[str, PeerReader] = {}
        self.expected: dict[str, ExpectedRequest] = {}
        self.spent: dict[str, int] = {}
        """Epochs that the core did not take."""

    # Peers

    @rule(name=names, incarnation=st.integers(1, 3))
    def attach(self, name: str, incarnation: int) -> None:
        peer, old = PeerId(name, incarnation), self.streams.get(name)
        if old is not None and old.link.peer.incarnation > incarnation:
            self.refused(Code.FAILED_PRECONDITION, lambda: self.registry.attach(peer, self.now))
            return
        link, superseded = self.registry.attach(peer, self.now)
        assert superseded is (old.link if old is not None else None)
        self.streams[name] = PeerReader(link)
        for request_id, expected in list(self.expected.items()):
            if expected.submitter.name == name and expected.submitter.incarnation < incarnation:
                self.forget(request_id)
            elif expected.submitter == peer and expected.deliver_to == name:
                expected.orphaned_at = None
            elif old is not None and expected.submitter == old.link.peer and expected.orphaned_at is None:
                expected.orphaned_at = self.now

    @rule(name=names)
    def detach(self, name: str) -> None:
        if (stream := self.streams.pop(name, None)) is not None:
            self.registry.detach(stream.link, self.now)
            for expected in self.expected.values():
                if expected.submitter == stream.link.peer and expected.orphaned_at is None:
                    expected.orphaned_at = self.now

    @rule(seconds=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.registry.expire(self.now)
        for request_id, expected in list(self.expected.items()):
            if expected.orphaned_at is not None and expected.orphaned_at + GRACE <= self.now:
                self.forget(request_id)

    def forget(self, request_id: str) -> None:
        del self.expected[request_id]

    # Commands

    @precondition(lambda self: self.streams)
    @rule(
        name=names,
        counter=counters,
        epoch=st.integers(0, 4),
        deliver_to=st.sampled_from(["", *NAMES, "nobody"]),
        logs=st.dictionaries(choices, st.lists(st.integers(0, 9), max_size=3), min_size=1),
        scored=st.booleans(),
        context=st.binary(max_size=20),
    )
    def submit(
        self,
        name: str,
        counter: int,
        epoch: int,
        deliver_to: str,
        logs: dict[int, list[int]],
        scored: bool,
        context: bytes,
    ) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        peer = stream.link.peer
        request_id = f"{peer.incarnation}-{NAMES.index(name)}{counter}"
        if 0 < epoch <= self.spent.get(request_id, 0):
            return  # a submitter never uses an epoch again
        asked = 1 if scored else None
        ask = {"deliver_to": deliver_to, "output_context": context, "choices": logs, "core_request": set(logs)}
        sizes = {"max_tokens": MAX_TOKENS, "prompt_tokens": PROMPT_TOKENS, "logprobs": asked, "prompt_logprobs": asked}
        submitted = submission(request_id, epoch, **ask, **sizes)
        old = self.expected.get(request_id)
        receiver = deliver_to or name
        code = None
        if epoch == 0:
            code = Code.INVALID_ARGUMENT
        elif old is not None and epoch <= old.epoch:
            code = Code.ALREADY_EXISTS
        elif receiver not in self.streams:
            code = Code.UNAVAILABLE
        elif old is None and len(self.expected) >= MAX_LEDGERS:
            code = Code.RESOURCE_EXHAUSTED
        if code is not None:
            self.refused(code, lambda: self.registry.submit(peer, submitted))
            return
        before = set(self.core.names)
        self.registry.submit(peer, submitted)
        (core_id,) = self.core.names - before
        if old is not None:
            assert not self.core.running.get(old.core_id), "the old one is freed first"
        self.expected[request_id] = ExpectedRequest(
            epoch,
            peer,
            receiver,
            core_id,
            context,
            {choice: list(ids) for choice, ids in logs.items()},
            {choice: len(ids) for choice, ids in logs.items()},
            scored,
            {choice: len(ids) for choice, ids in logs.items() if ids},
        )

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), name=names, raised=st.integers(-1, 2), deliver_to=st.sampled_from(["", *NAMES, "nobody"]))
    def redirect(self, data: st.DataObject, name: str, raised: int, deliver_to: str) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        request_id, expected = data.draw(st.sampled_from(sorted(self.expected.items(), key=lambda item: item[0])))
        peer, epoch, receiver = stream.link.peer, expected.epoch + raised, deliver_to or name
        delivered = {choice: len(ids) // 2 for choice, ids in expected.logs.items()}
        code = None
        if expected.submitter != peer:
            code = Code.NOT_FOUND
        elif raised <= 0:
            code = Code.ALREADY_EXISTS
        elif receiver not in self.streams:
            code = Code.UNAVAILABLE
        if code is not None:
            self.refused(code, lambda: self.registry.redirect(peer, request_id, epoch, deliver_to, delivered))
            return
        self.registry.redirect(peer, request_id, epoch, deliver_to, delivered)
        expected.epoch, expected.deliver_to, expected.delivered, expected.orphaned_at = epoch, receiver, delivered, None

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), name=names, raised=st.integers(-1, 1), kind=st.sampled_from(["cancel", "done"]))
    def end_it(self, data: st.DataObject, name: str, raised: int, kind: str) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        request_id = data.draw(st.sampled_from(sorted(self.expected)))
        expected, peer = self.expected[request_id], stream.link.peer
        getattr(self.registry, kind)(peer, request_id, expected.epoch + raised)
        if expected.submitter != peer or raised < 0:
            return
        if kind == "done":
            self.forget(request_id)
        else:
            for choice, ids in expected.logs.items():
                expected.ends.setdefault(choice, ChoiceEnd(FinishReason.CANCELLED, len(ids)))

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), name=names, raised=st.integers(-1, 1), choice=choices, position=st.integers(0, 8))
    def stop(self, data: st.DataObject, name: str, raised: int, choice: int, position: int) -> None:
        if (stream := self.streams.get(name)) is None:
            return
        request_id = data.draw(st.sampled_from(sorted(self.expected)))
        expected = self.expected[request_id]
        self.registry.stop(stream.link.peer, request_id, expected.epoch + raised, choice, position)
        log, end = expected.logs.get(choice), expected.ends.get(choice)
        if expected.deliver_to != name or raised != 0 or log is None or not 1 <= position <= len(log):
            return
        if end is None or position <= end.position:
            del log[position:]
            expected.ends[choice] = ChoiceEnd(FinishReason.STOP, position)

    def refused(self, code: Code, command: Callable[[], object]) -> None:
        before = dict(self.core.running)
        with pytest.raises(Refused) as refusal:
            command()
        assert refusal.value.status.code == code
        assert self.core.running == before

    # The core

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), choice=choices, count=st.integers(0, 4), ends=st.booleans())
    def compute(self, data: st.DataObject, choice: int, count: int, ends: bool) -> None:
        expected = self.expected[data.draw(st.sampled_from(sorted(self.expected)))]
        if choice not in expected.logs:
            return
        log = expected.logs[choice]
        count = min(count, MAX_TOKENS - len(log))
        ids = [(len(log) + i) % 10 for i in range(count)]
        logprobs = packed(logprob(len(log) + i, token) for i, token in enumerate(ids)) if expected.scored else None
        end = ChoiceEnd(FinishReason.LENGTH, len(log) + count) if ends else None
        self.registry.progress(expected.core_id, choice, ids, logprobs, end)
        if choice not in expected.ends:
            log += ids
            if end is not None:
                expected.ends[choice] = end
                self.core.cancel(expected.core_id, choice)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), count=st.integers(1, 8))
    def score_the_prompt(self, data: st.DataObject, count: int) -> None:
        expected = self.expected[data.draw(st.sampled_from(sorted(self.expected)))]
        start = len(expected.prompt)
        if expected.scored and start < PROMPT_TOKENS - 1:
            expected.prompt += [logprob(start + i, i) for i in range(min(count, PROMPT_TOKENS - 1 - start))]
            self.registry.prompt_logprobs(expected.core_id, packed(expected.prompt[start:]))

    @rule()
    def late_news_of_what_is_forgotten_is_dropped(self) -> None:
        for core_id in self.core.names - {expected.core_id for expected in self.expected.values()}:
            self.registry.progress(core_id, 0, [1], None, None)
            self.registry.prefilled(core_id, 1, 0)
            self.registry.prompt_logprobs(core_id, packed([]))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def the_core_refuses(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.expected)))
        expected = self.expected[request_id]
        over = len(expected.ends) == len(expected.logs)
        self.core.running.pop(expected.core_id, None)
        entry = self.registry.refuse(expected.core_id, Status(Code.INVALID_ARGUMENT, "no"))
        assert (entry is None) == over, "what was cancelled before had its end"
        if not over:
            self.spent[request_id] = expected.epoch
            self.forget(request_id)

    @precondition(lambda self: self.streams)
    @rule(name=names, max_bytes=LIMITS)
    def take(self, name: str, max_bytes: int) -> None:
        if (stream := self.streams.get(name)) is not None:
            stream.take(max_bytes, self.expected)

    # What must hold

    @invariant()
    def each_request_leaves_the_core_once(self) -> None:
        assert sorted([*self.left, *self.registry._in_core]) == sorted(self.core.names)

    @invariant()
    def the_ledger_is_what_is_known(self) -> None:
        assert self.registry.num_ledgers == len(self.expected)
        assert set(self.registry.attached()) == {stream.link.peer for stream in self.streams.values()}
        unfinished = {
            expected.core_id for expected in self.expected.values() if len(expected.ends) < len(expected.logs)
        }
        assert self.registry.num_unfinished == len(unfinished)
        entries = list(self.ledgers)
        charged = sum(entry.logprob_bytes for entry in entries)
        assert sum(map(bytes_of, entries)) <= charged, "nothing is held that was not charged before"
        for core_id, running in self.core.running.items():
            assert core_id in unfinished or not running, "the core computes nothing that nobody waits for"

    def teardown(self) -> None:
        for stream in self.streams.values():
            while stream.link.pending:
                stream.take(300, self.expected)
            assert stream.peers == set(self.registry.attached())
        for request_id, expected in self.expected.items():
            if (stream := self.streams.get(expected.deliver_to)) is not None:
                received = stream.received[request_id]
                assert (received.epoch, received.delivered) == (expected.epoch, expected.delivered)
                assert not received.closed
                assert unpacked(received.prompt) == expected.prompt
                for choice, log in expected.logs.items():
                    # A stop may have cut what had been carried; then its end says where.
                    assert received.ids[choice][: len(log)] == log
                    if choice in expected.ends and received.ids[choice] == log:
                        assert received.ends[choice].position == len(log)
                    assert (choice in received.ends) == (choice in expected.ends)
        for name, stream in self.streams.items():
            for request_id, received in stream.received.items():
                expected = self.expected.get(request_id)
                if expected is None or expected.deliver_to != name:
                    told = received.closed or (request_id, received.epoch) in stream.rejected_epochs
                    assert told or len(received.ends) == len(received.ids), "whoever was cut off was told"
        for stream in self.streams.values():
            self.registry.detach(stream.link, self.now)
        self.registry.expire(self.now + GRACE)
        self.registry.attach(PeerId("p", 9), self.now)
        # All that there is to charge goes to one request, so nothing is charged any more.
        self.registry.submit(PeerId("p", 9), submission("9-1", prompt_tokens=10**8, prompt_logprobs=0))


AttachRegistryMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAttachRegistry = AttachRegistryMachine.TestCase
