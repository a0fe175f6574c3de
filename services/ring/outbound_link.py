"""The engine's outbound link to one peer: instead of queueing frames, it keeps a cursor into the ledger per request.

When a write completes, ``take`` collects everything new since the last one, as the packed arrays of one frame. A slow
reader gets fewer and larger frames; the link needs no memory beyond the ledger's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from services.ring.attached_peers import PeerChange, PeerListSender
from services.ring.errors import Status
from services.ring.events import NO_DRAFTS, ChoiceEnd, Prefill
from services.ring.identity import PeerId
from services.ring.ledger import LedgerEntry
from services.ring.logprobs import PackedLogprobs

MAX_FRAME_BYTES = 64 << 10
"""A peer handles one frame at a time, and decodes text at some 6 microseconds per token."""
# Upper estimates of wire sizes in bytes; they only keep frames below the limit.
_ENTRY_BYTES, _TOKEN_BYTES = 160, 5


@dataclass(frozen=True, slots=True)
class RejectedCommand:
    """A command of this peer that was refused; the peer finds it by id and epoch, or by ``in_reply_to``."""

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
    """(request id, epoch, offset, logprobs); ``offset`` counts the entries sent before."""
    request_ids: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    first_positions: list[int] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, PackedLogprobs]] = field(default_factory=list)
    """(entry index, logprobs), aligned to the entry's last tokens: resumed tokens have none."""
    ends: list[tuple[str, int, int, ChoiceEnd]] = field(default_factory=list)
    """(request id, epoch, choice, end)."""
    drafts: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    """(entry index, its choice's accepted and rejected drafts so far), where there are any."""
    closed: list[tuple[str, int]] = field(default_factory=list)
    rejections: list[RejectedCommand] = field(default_factory=list)
    peers: PeerChange | None = None


class _Cursor:
    """How much of one request has been sent on this link, under one epoch."""

    __slots__ = ("earlier_epoch", "ended", "entry", "epoch", "opened", "prefill", "prompt_logprobs_sent", "sent")

    def __init__(self, entry: LedgerEntry, *, earlier_epoch: int | None) -> None:
        """``earlier_epoch``: the epoch of this request that the peer still has open from before, if any."""
        self.entry = entry
        self.epoch = entry.epoch
        self.earlier_epoch = earlier_epoch
        self.opened = False
        self.sent = dict.fromkeys(entry.choices, 0)
        self.ended: set[int] = set()
        self.prefill: Prefill | None = None
        self.prompt_logprobs_sent = 0

    @property
    def peer_waits(self) -> bool:
        """Whether the peer has the request open and expects more of it."""
        return (self.opened or self.earlier_epoch is not None) and len(self.ended) < len(self.sent)

    @property
    def epoch_at_peer(self) -> int | None:
        """The epoch that the peer has open; None if it expects nothing more."""
        if not self.peer_waits:
            return None
        return self.epoch if self.opened else self.earlier_epoch


class OutboundLink:
    """What one attached peer has been sent and must still be sent."""

    def __init__(self, peer: PeerId, attached: Iterable[PeerId] = ()) -> None:
        """``attached``: all attached peers, including this one."""
        self.peer = peer
        self.peers = PeerListSender(attached)
        self._cursors: dict[str, _Cursor] = {}
        self._dirty: dict[str, None] = {}
        self._has_news = False
        """Whether a request in ``_dirty`` has more to tell than that it has come."""
        self._closed: dict[str, int] = {}
        self._rejections: list[RejectedCommand] = []

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return a frame."""
        return bool(self._dirty or self._closed or self._rejections or self.peers.pending)

    @property
    def hurries(self) -> bool:
        """Whether ``take`` would return more than that requests have come, which may be told a little later."""
        return bool(self._has_news or self._closed or self._rejections or self.peers.pending)

    @property
    def num_rejections(self) -> int:
        """Rejections not yet taken; while there are many, the peer's commands are not read."""
        return len(self._rejections)

    def add(self, entry: LedgerEntry) -> None:
        """Send a request from position 0 under its present epoch; call again after each change of epoch."""
        old = self._cursors.get(entry.request_id)
        earlier_epoch = self._closed.pop(entry.request_id, None)
        if earlier_epoch is None and old is not None:
            earlier_epoch = old.epoch_at_peer
        self._cursors[entry.request_id] = _Cursor(entry, earlier_epoch=earlier_epoch)
        self._dirty[entry.request_id] = None
        self._has_news |= earlier_epoch is not None or entry.prefill is not None

    def mark(self, request_id: str) -> None:
        """The request's ledger entry has something new."""
        if request_id in self._cursors:
            self._dirty[request_id] = None
            self._has_news = True

    def drop(self, request_id: str) -> None:
        """Stop sending a request. The peer gets a ``Closed``, unless it does not know the request or has every end."""
        cursor = self._cursors.pop(request_id, None)
        self._dirty.pop(request_id, None)
        if cursor is not None and cursor.peer_waits:
            self._closed[request_id] = cursor.epoch

    def withdraw(self, request_id: str) -> None:
        """Stop sending a request whose epoch was rejected; an earlier epoch that the peer has open is closed."""
        cursor = self._cursors.pop(request_id, None)
        self._dirty.pop(request_id, None)
        if cursor is not None and cursor.earlier_epoch is not None and not cursor.opened:
            self._closed[request_id] = cursor.earlier_epoch

    def reject(self, rejection: RejectedCommand) -> None:
        self._rejections.append(rejection)

    def clear(self) -> None:
        """Free everything at the end of the stream: gRPC may keep this object until the peer has read its frames."""
        self._cursors.clear()
        self._dirty.clear()
        self._has_news = False
        self._closed.clear()
        self._rejections.clear()
        self.peers.clear()

    def take(self, max_bytes: int = MAX_FRAME_BYTES) -> OutputFrame | None:
        """Everything new, up to about ``max_bytes`` (exceeded by one entry at most); None if nothing is new."""
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
        self._has_news &= bool(self._dirty)
        return frame

    def _take_rejections(self, frame: OutputFrame, room: int) -> int:
        """Add the rejections that fit; returns bytes used."""
        size = 0
        for rejection in self._rejections:
            if size >= room:
                break
            size += _ENTRY_BYTES + len(rejection.status.message)
            frame.rejections.append(rejection)
        del self._rejections[: len(frame.rejections)]
        return size

    def _advance(self, cursor: _Cursor, frame: OutputFrame, room: int) -> tuple[int, bool]:
        """Add what is new of one request; returns bytes used, and whether something did not fit."""
        entry, size = cursor.entry, 0
        if not cursor.opened:
            cursor.opened = True
            frame.opened.append(entry)
            size += _ENTRY_BYTES * len(entry.choices) + len(entry.output_context)  # each becomes a decoder
        if entry.prefill is not None and entry.prefill != cursor.prefill:
            cursor.prefill = entry.prefill
            frame.prefills.append((entry.request_id, entry.epoch, entry.prefill))
            size += _ENTRY_BYTES
        used, rest = _advance_prompt(cursor, frame, room - size)
        size += used
        if rest:
            return size, True  # output tokens follow the prompt's logprobs
        for choice in cursor.sent:
            if choice in cursor.ended:
                continue
            if size >= room and size > 0 and entry.choices[choice].end is not None:
                return size, True  # results may be large: at most one goes beyond the room
            used, choice_rest = _advance_choice(cursor, choice, frame, room - size)
            size, rest = size + used, rest or choice_rest
        return size, rest


def _advance_prompt(cursor: _Cursor, frame: OutputFrame, room: int) -> tuple[int, bool]:
    """Add the prompt's log probabilities that fit, at least one; returns like ``_advance``."""
    scores, start = cursor.entry.prompt_logprobs, cursor.prompt_logprobs_sent
    if scores is None or start == len(scores):
        return 0, False
    stop = min(len(scores), start + max(1, (room - _ENTRY_BYTES) // scores.entry_bytes))
    frame.prompt_logprobs.append((cursor.entry.request_id, cursor.entry.epoch, start, scores.part(start, stop)))
    cursor.prompt_logprobs_sent = stop
    return _ENTRY_BYTES + (stop - start) * scores.entry_bytes, stop < len(scores)


def _advance_choice(cursor: _Cursor, choice: int, frame: OutputFrame, room: int) -> tuple[int, bool]:
    """Add the tokens of one choice that fit, at least one, and its end; returns like ``_advance``."""
    entry = cursor.entry
    log, start, size = entry.choices[choice], cursor.sent[choice], 0
    # A stop string may have cut the log below what was already sent.
    start = min(start, len(log.ids))
    stop = len(log.ids)
    if stop > start:
        token_bytes = _TOKEN_BYTES + (log.logprobs.entry_bytes if log.logprobs else 0)
        stop = min(stop, start + max(1, (room - _ENTRY_BYTES) // token_bytes))
        if log.logprobs and stop > log.resumed:
            scores = log.logprobs.part(max(0, start - log.resumed), stop - log.resumed)
            frame.logprobs.append((len(frame.request_ids), scores))
        if log.drafts != NO_DRAFTS:
            frame.drafts.append((len(frame.request_ids), log.drafts))
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
        size += _ENTRY_BYTES + (len(log.end.pooled.values) if log.end.pooled is not None else 0)
    return size, False
