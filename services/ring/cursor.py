"""An outbound link of the engine: no queue of frames, only a cursor per request.

When a write completes, ``take`` collects everything new since, as the packed arrays of one frame. A reader that
is slow gets fewer, larger frames; memory stays that of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from services.ring.errors import Status
from services.ring.events import ChoiceEnd, Prefill
from services.ring.identity import PeerId
from services.ring.ledger import LedgerEntry
from services.ring.logprobs import PackedLogprobs
from services.ring.peer_list import PeerChange, PeerListSender

MAX_FRAME_BYTES = 1 << 20
# Upper estimates of what things take on the wire, bytes; they keep frames below the limit, no more.
_ENTRY_BYTES, _TOKEN_BYTES = 160, 5


@dataclass(frozen=True, slots=True)
class RejectedCommand:
    """A command of this peer that was refused."""

    request_id: str
    epoch: int
    in_reply_to: int
    status: Status


@dataclass(slots=True)
class OutputFrame:
    """The content of one frame; ``request_ids`` … ``token_counts`` are aligned, one entry per choice."""

    opened: list[LedgerEntry] = field(default_factory=list)
    prefills: list[tuple[str, int, Prefill]] = field(default_factory=list)
    prompt_logprobs: list[tuple[str, int, int, PackedLogprobs]] = field(default_factory=list)
    """(request id, epoch, how many came before, the next ones)."""
    request_ids: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    first_positions: list[int] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, PackedLogprobs]] = field(default_factory=list)
    """(index of the entry, those of its last tokens): resumed tokens have none."""
    ends: list[tuple[str, int, int, ChoiceEnd]] = field(default_factory=list)
    """(request id, epoch, choice, end)."""
    closed: list[tuple[str, int]] = field(default_factory=list)
    rejections: list[RejectedCommand] = field(default_factory=list)
    peers: PeerChange | None = None


class _Cursor:
    """How far one stream has carried one request, under one epoch."""

    __slots__ = ("ended", "entry", "epoch", "heard", "opened", "prefill", "prompt_scores", "sent")

    def __init__(self, entry: LedgerEntry, *, heard: int | None) -> None:
        """``heard``: the earlier epoch under which the peer was told of the request and waits for more, if any."""
        self.entry = entry
        self.epoch = entry.epoch
        self.heard = heard
        self.opened = False
        self.sent = dict.fromkeys(entry.choices, 0)
        self.ended: set[int] = set()
        self.prefill: Prefill | None = None
        self.prompt_scores = 0

    @property
    def awaited(self) -> bool:
        """Whether the peer has heard of the request and waits for more."""
        return (self.opened or self.heard is not None) and len(self.ended) < len(self.sent)

    @property
    def last_heard(self) -> int | None:
        """The epoch under which the peer waits for more; None if it does not."""
        if not self.awaited:
            return None
        return self.epoch if self.opened else self.heard


class OutboundLink:
    """What one attached peer has been sent, and what is new for it."""

    def __init__(self, peer: PeerId, attached: Iterable[PeerId] = ()) -> None:
        """``attached``: who is there, this peer included."""
        self.peer = peer
        self.peers = PeerListSender(attached)
        self._cursors: dict[str, _Cursor] = {}
        self._dirty: dict[str, None] = {}
        self._closed: dict[str, int] = {}
        self._rejections: list[RejectedCommand] = []

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return a frame."""
        return bool(self._dirty or self._closed or self._rejections or self.peers.pending)

    @property
    def num_rejections(self) -> int:
        """Rejections not yet taken; the reader of commands pauses while there are many."""
        return len(self._rejections)

    def carry(self, entry: LedgerEntry) -> None:
        """Carry a request from position 0 under its present epoch; again after each change of epoch."""
        old = self._cursors.get(entry.request_id)
        heard = self._closed.pop(entry.request_id, None)
        if heard is None and old is not None:
            heard = old.last_heard
        self._cursors[entry.request_id] = _Cursor(entry, heard=heard)
        self._dirty[entry.request_id] = None

    def mark(self, request_id: str) -> None:
        """Something new is in the request's ledger entry."""
        if request_id in self._cursors:
            self._dirty[request_id] = None

    def drop(self, request_id: str) -> None:
        """Carry the request no longer; the peer is told unless it never heard of it or has every end."""
        cursor = self._cursors.pop(request_id, None)
        self._dirty.pop(request_id, None)
        if cursor is not None and cursor.awaited:
            self._closed[request_id] = cursor.epoch

    def withdraw(self, request_id: str) -> None:
        """Carry a request no longer whose epoch ends with a rejection; an earlier epoch of it may have to be closed."""
        cursor = self._cursors.pop(request_id, None)
        self._dirty.pop(request_id, None)
        if cursor is not None and cursor.heard is not None and not cursor.opened:
            self._closed[request_id] = cursor.heard

    def reject(self, rejection: RejectedCommand) -> None:
        """Tell the peer that a command was refused."""
        self._rejections.append(rejection)

    def clear(self) -> None:
        """The peer's stream is over: forget all, for gRPC may keep it until the peer takes what is under way."""
        self._cursors.clear()
        self._dirty.clear()
        self._closed.clear()
        self._rejections.clear()
        self.peers.clear()

    def take(self, max_bytes: int = MAX_FRAME_BYTES) -> OutputFrame | None:
        """Everything new, up to about ``max_bytes`` (one request's news more at most); None if nothing is."""
        if not self.pending:
            return None
        frame = OutputFrame(
            peers=self.peers.take(), closed=list(islice(self._closed.items(), max(1, max_bytes // _ENTRY_BYTES)))
        )
        for request_id, _ in frame.closed:
            del self._closed[request_id]
        size = _ENTRY_BYTES * len(frame.closed)
        size += self._take_rejections(frame, max_bytes - size)
        dirty, self._dirty = self._dirty, {}
        for request_id in dirty:
            if size >= max_bytes:
                self._dirty[request_id] = None
                continue
            cursor = self._cursors[request_id]
            used, rest = self._advance(cursor, frame, max_bytes - size)
            size += used
            if rest:
                self._dirty[request_id] = None
        return frame

    def _take_rejections(self, frame: OutputFrame, room: int) -> int:
        """Put as many rejections into the frame as fit; returns bytes used."""
        size = 0
        for rejection in self._rejections:
            if size >= room:
                break
            size += _ENTRY_BYTES + len(rejection.status.message)
            frame.rejections.append(rejection)
        del self._rejections[: len(frame.rejections)]
        return size

    def _advance(self, cursor: _Cursor, frame: OutputFrame, room: int) -> tuple[int, bool]:
        """Put one request's news into the frame; returns bytes used and whether some did not fit."""
        entry, size = cursor.entry, 0
        if not cursor.opened:
            cursor.opened = True
            frame.opened.append(entry)
            size += _ENTRY_BYTES + len(entry.output_context)
        if entry.prefill is not None and entry.prefill != cursor.prefill:
            cursor.prefill = entry.prefill
            frame.prefills.append((entry.request_id, entry.epoch, entry.prefill))
            size += _ENTRY_BYTES
        used, rest = _advance_prompt(cursor, frame, room - size)
        size += used
        if rest:
            return size, True  # what is computed from the prompt comes behind it
        for choice in cursor.sent:
            if choice not in cursor.ended:
                used, choice_rest = _advance_choice(cursor, choice, frame, room - size)
                size, rest = size + used, rest or choice_rest
        return size, rest


def _advance_prompt(cursor: _Cursor, frame: OutputFrame, room: int) -> tuple[int, bool]:
    """Put the prompt's log probabilities into the frame, as many as fit (at least one)."""
    scores, start = cursor.entry.prompt_logprobs, cursor.prompt_scores
    if scores is None or start == len(scores):
        return 0, False
    stop = min(len(scores), start + max(1, (room - _ENTRY_BYTES) // scores.entry_bytes))
    frame.prompt_logprobs.append((cursor.entry.request_id, cursor.entry.epoch, start, scores.part(start, stop)))
    cursor.prompt_scores = stop
    return _ENTRY_BYTES + (stop - start) * scores.entry_bytes, stop < len(scores)


def _advance_choice(cursor: _Cursor, choice: int, frame: OutputFrame, room: int) -> tuple[int, bool]:
    """Put one choice's news into the frame, as many tokens as fit (at least one)."""
    entry = cursor.entry
    log, start, size = entry.choices[choice], cursor.sent[choice], 0
    # A stop string may have cut the log behind what this stream has already carried.
    start = min(start, len(log.ids))
    stop = len(log.ids)
    if stop > start:
        token_bytes = _TOKEN_BYTES + (log.logprobs.entry_bytes if log.logprobs else 0)
        stop = min(stop, start + max(1, (room - _ENTRY_BYTES) // token_bytes))
        if log.logprobs and stop > log.resumed:
            scores = log.logprobs.part(max(0, start - log.resumed), stop - log.resumed)
            frame.logprobs.append((len(frame.request_ids), scores))
        frame.request_ids.append(entry.request_id)
        frame.epochs.append(entry.epoch)
        frame.choices.append(choice)
        frame.first_positions.append(start)
        frame.token_counts.append(stop - start)
        frame.token_ids.extend(log.ids[start:stop])
        cursor.sent[choice] = stop
        size += _ENTRY_BYTES + (stop - start) * token_bytes
    if stop < len(log.ids):
        return size, True
    if log.end is not None:
        cursor.ended.add(choice)
        frame.ends.append((entry.request_id, entry.epoch, choice, log.end))
        size += _ENTRY_BYTES
    return size, False
