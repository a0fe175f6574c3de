"""For tests of the attach registry: a core that records calls, a registry with peers, a reader that checks frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from services.engine.engine_messages import response_of
from services.ring.attach_registry import AttachRegistry
from services.ring.attached_peers import PeerList
from services.ring.errors import Code, Refused, Status
from services.ring.events import ChoiceEnd
from services.ring.identity import PeerId
from services.ring.ledger import LedgerEntry, Ledgers, Submission
from services.ring.logprobs import PackedLogprobs
from services.ring.outbound_link import OutboundLink, OutputFrame
from tests.services.ring.token_logprobs import TokenLogprob, unpacked

GRACE = 2.0
MAX_LEDGERS = 5


def logprob(position: int, token: int) -> TokenLogprob:
    return TokenLogprob(-1.0, token + 1, (position,), (-1.0,))


class RecordingCore:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.running: dict[str, set[int]] = {}
        self.names: set[str] = set()

    def add(self, core_id: str, core_request: object) -> None:
        assert core_id not in self.names, "a submission's name is never used again"
        assert isinstance(core_request, set)
        self.names.add(core_id)
        self.running[core_id] = set(core_request)

    def cancel(self, core_id: str, choice: int | None) -> None:
        if choice is None:
            self.running.pop(core_id, None)
        else:
            self.running.get(core_id, set()).discard(choice)


@dataclass
class ExpectedRequest:
    """All there is to know of a request."""

    epoch: int
    submitter: PeerId
    deliver_to: str
    core_id: str
    context: bytes
    logs: dict[int, list[int]]
    resumed: dict[int, int]
    scored: bool
    delivered: dict[int, int]
    prompt: list[TokenLogprob] = field(default_factory=list)
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)
    orphaned_at: float | None = None


@dataclass
class ReceivedRequest:
    """What one stream said of one request under one epoch."""

    epoch: int
    delivered: dict[int, int]
    ids: dict[int, list[int]]
    prompt: PackedLogprobs | None = None
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)
    closed: bool = False


class PeerReader:
    """One attached peer, reading."""

    def __init__(self, link: OutboundLink) -> None:
        self.link = link
        self.received: dict[str, ReceivedRequest] = {}
        self.rejected: dict[str, int] = {}
        """The highest epoch of each request that the core did not take."""
        self.rejected_epochs: set[tuple[str, int]] = set()
        """All of them."""
        self._peers = PeerList()
        self.peers: frozenset[PeerId] = frozenset()

    def take(self, max_bytes: int, expected: dict[str, ExpectedRequest]) -> None:
        frame = self.link.take(max_bytes)
        if frame is None:
            assert not self.link.pending
            return
        assert response_of(frame).ByteSize() <= max_bytes + 2000, "one request's least news more at most"
        if frame.peers is not None:
            self.peers = self._peers.apply(frame.peers)
        for one in frame.rejections:
            assert one.epoch > self.rejected.get(one.request_id, 0), "one rejection per epoch"
            self.rejected[one.request_id] = one.epoch
            self.rejected_epochs.add((one.request_id, one.epoch))
        for entry in frame.opened:
            self.received[entry.request_id] = ReceivedRequest(
                entry.epoch, dict(entry.delivered), {choice: [] for choice in entry.choices}
            )
            assert entry.output_context == expected[entry.request_id].context
        for request_id, epoch, offset, scores in frame.prompt_logprobs:
            received = self.received[request_id]
            assert received.epoch == epoch
            assert offset == (0 if received.prompt is None else len(received.prompt)), "gapless"
            if received.prompt is None:
                received.prompt = scores
            else:
                received.prompt.extend(scores)
        self._tokens(frame, expected)
        for request_id, epoch, choice, end in frame.ends:
            received = self.received[request_id]
            assert received.epoch == epoch
            assert choice not in received.ends, "one end per choice"
            assert end.position <= len(received.ids[choice]), "the tokens before an end come before it"
            received.ends[choice] = end
        for request_id, epoch in frame.closed:
            received = self.received[request_id]
            assert received.epoch <= epoch
            assert epoch != self.rejected.get(request_id), "a rejection is the end of its epoch"
            assert len(received.ends) < len(received.ids), "only what has unfinished choices is closed"
            received.closed = True

    def _tokens(self, frame: OutputFrame, expected: dict[str, ExpectedRequest]) -> None:
        logprobs = dict(frame.logprobs)
        start = 0
        for index, request_id in enumerate(frame.request_ids):
            received = self.received[request_id]
            choice, first, count = frame.choices[index], frame.first_positions[index], frame.token_counts[index]
            assert frame.epochs[index] == received.epoch
            assert not received.closed
            assert choice not in received.ends, "nothing follows an end"
            assert first == len(received.ids[choice]), "gapless from position 0"
            assert count >= 1
            ids = frame.token_ids[start : start + count]
            received.ids[choice] += ids
            start += count
            if expected[request_id].scored:
                fresh = range(max(first, expected[request_id].resumed[choice]), first + count)
                scored = [logprob(position, ids[position - first]) for position in fresh]
                assert unpacked(logprobs.get(index)) == scored, "aligned to the end of the ids"
            else:
                assert index not in logprobs
        assert start == len(frame.token_ids)


def submission(request_id: str = "1-1", epoch: int = 1, **fields: object) -> Submission:
    values: dict[str, object] = {
        "deliver_to": "",
        "output_context": b"",
        "choices": {0: ()},
        "max_tokens": 0,
        "logprobs": None,
        "prompt_tokens": 5,
        "prompt_logprobs": None,
        "num_ids": 5,
        "tenant": "",
        "core_request": {0},
    }
    return Submission(request_id, epoch, **(values | fields))  # type: ignore[arg-type]


def code_of(command: Callable[[], object]) -> tuple[Code, str]:
    with pytest.raises(Refused) as refusal:
        command()
    return refusal.value.status.code, refusal.value.status.message


class Registry:
    """A registry with peers attached in their first life, and what they do. ``p`` submits unless told otherwise."""

    def __init__(
        self, *names: str, on_removed: Callable[[LedgerEntry], None] = lambda entry: None, **limits: Any
    ) -> None:
        self.core = RecordingCore()
        self.ledgers = Ledgers(**{"orphan_grace": GRACE, "max_entries": MAX_LEDGERS, **limits})
        self.registry = AttachRegistry(self.core, self.ledgers, on_removed=on_removed)
        self.links = {name: self.registry.attach(PeerId(name, 1), 0.0)[0] for name in names or ("p",)}

    def submit(self, request_id: str = "1-1", epoch: int = 1, *, in_reply_to: int = 0, **fields: object) -> str:
        """Submit a request; returns its name in the core."""
        before = set(self.core.names)
        self.registry.submit(PeerId("p", 1), submission(request_id, epoch, **fields), in_reply_to)
        (core_id,) = self.core.names - before
        return core_id

    def refusal(self, request_id: str = "1-1", epoch: int = 1, **fields: object) -> Status:
        """Why a request is refused."""
        with pytest.raises(Refused) as refused:
            self.submit(request_id, epoch, **fields)
        return refused.value.status

    def done(self, request_id: str, epoch: int = 1) -> None:
        self.registry.done(PeerId("p", 1), request_id, epoch)

    def redirect(
        self, request_id: str, epoch: int, deliver_to: str = "", delivered: dict[int, int] | None = None
    ) -> None:
        self.registry.redirect(PeerId("p", 1), request_id, epoch, deliver_to, delivered or {})

    def take(self, name: str = "p") -> OutputFrame:
        """The next frame to a peer; there must be one."""
        frame = self.links[name].take()
        assert frame is not None
        return frame
