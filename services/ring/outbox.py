"""Output for a reader that may be slow: coalesced per request, never queued per step.

The detokenizer has an outbox for each processor, the processor one for each client. Unread output is counted in bytes
and bounded (``Outboxes``). The outbox's owner limits how long a reader may read nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.ring.events import ChoiceEnd, Prefill, TypedParts
from services.ring.logprobs import PackedLogprobs

MAX_UNREAD_BYTES = 64 << 20
"""Default bound on unread bytes for one reader."""
_READERS = 2
"""Bound on unread bytes for all readers of a process together, as a multiple of the bound for one reader."""

# Upper estimates of wire sizes in bytes.
_REQUEST_BYTES, _CHOICE_BYTES, _TOKEN_BYTES = 96, 96, 5
_UTF8_BYTES = 4
# Upper estimates of the memory of Python's objects beyond the wire size, bytes.
_REQUEST_HELD, _CHOICE_HELD, _DELTA_HELD, _ID_HELD, _PIECE_HELD, _NOTICE_HELD = 600, 500, 112, 36, 250, 1000


@dataclass(slots=True)
class ChoiceUpdate:
    """Deltas of one choice that the reader has not been sent yet, and its end."""

    first_position: int
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """One text per delta."""
    counts: list[int] = field(default_factory=list)
    """Number of ids, one per delta."""
    parts: list[TypedParts | None] = field(default_factory=list)
    """The typed parts that each delta adds; None without any."""
    logprobs: PackedLogprobs | None = None
    """Aligned to the end of ``ids``: resumed tokens have none."""
    wire_bytes: int = _CHOICE_BYTES
    """Upper estimate of its size on the wire."""
    end: ChoiceEnd | None = None

    def add(
        self, ids: Sequence[int], text: str, logprobs: PackedLogprobs | None, parts: TypedParts | None, size: int
    ) -> None:
        """Add a delta of ``size`` bytes on the wire. Takes ownership of ``logprobs``."""
        self.ids.extend(ids)
        self.texts.append(text)
        self.parts.append(parts)
        self.counts.append(len(ids))
        if self.logprobs is None:
            self.logprobs = logprobs
        elif logprobs is not None:
            self.logprobs.extend(logprobs)
        self.wire_bytes += size

    def cut(self, room: int) -> tuple[ChoiceUpdate, int]:
        """Remove and return the deltas that begin within ``room`` bytes, at least one, and their bytes.

        The end goes with the last delta: if everything fits, this object itself is returned.
        """
        entry_bytes, scored = (self.logprobs.entry_bytes, len(self.logprobs)) if self.logprobs else (0, 0)
        unscored = len(self.ids) - scored
        deltas = num_ids = 0
        used = _CHOICE_BYTES
        for count, text, parts in zip(self.counts, self.texts, self.parts, strict=True):
            if used >= room and deltas > 0:
                break
            fresh = max(0, num_ids + count - max(num_ids, unscored))
            deltas, num_ids = deltas + 1, num_ids + count
            used += _TOKEN_BYTES * count + _UTF8_BYTES * len(text) + entry_bytes * fresh
            used += 0 if parts is None else parts.wire_bytes
        if deltas == len(self.texts):
            return self, self.wire_bytes
        scores = self.logprobs.take(num_ids - unscored) if self.logprobs and num_ids > unscored else None
        head = ChoiceUpdate(
            self.first_position,
            self.ids[:num_ids],
            self.texts[:deltas],
            self.counts[:deltas],
            self.parts[:deltas],
            scores,
            used,
        )
        del self.ids[:num_ids], self.texts[:deltas], self.counts[:deltas], self.parts[:deltas]
        self.first_position += num_ids
        self.wire_bytes -= used - _CHOICE_BYTES
        return head, used


@dataclass(slots=True)
class RequestUpdate:
    """Everything new of one request since the last ``take``. Fields are in sending order."""

    request_id: str
    epoch: int
    opening: object | None = None
    """Sent once, first."""
    opening_bytes: int = 0
    """Size of ``opening`` on the wire."""
    prefill: Prefill | None = None
    prompt_logprobs: PackedLogprobs | None = None
    prompt_offset: int = 0
    """Entries of the prompt's logprobs that were sent before these."""
    notices: list[object] = field(default_factory=list)
    choices: dict[int, ChoiceUpdate] = field(default_factory=dict)
    closing: object | None = None
    """Sent once, last."""
    closing_bytes: int = 0
    """Size of ``closing`` on the wire, if it is large."""
    held: int = 0
    """Bytes charged to the outbox for this update."""

    def measure(self) -> int:
        """Upper estimate of its memory, bytes."""
        size = _REQUEST_HELD + self.opening_bytes + self.closing_bytes + _NOTICE_HELD * len(self.notices)
        if self.prompt_logprobs is not None:
            size += len(self.prompt_logprobs) * self.prompt_logprobs.entry_bytes
        for part in self.choices.values():
            size += _CHOICE_HELD + part.wire_bytes + _DELTA_HELD * len(part.texts) + _ID_HELD * len(part.ids)
            size += sum(_PIECE_HELD * len(parts.pieces) for parts in part.parts if parts is not None)
            size += _PIECE_HELD * len(part.end.parts.pieces) if part.end and part.end.parts else 0
        return size

    def add_prompt_logprobs(self, offset: int, scores: PackedLogprobs) -> None:
        """Add log probabilities of the prompt from entry ``offset`` on.

        If they do not continue those held, they replace them: the reader sees the gap and asks for a replay.
        """
        if self.prompt_logprobs is None or self.prompt_offset + len(self.prompt_logprobs) != offset:
            self.prompt_logprobs, self.prompt_offset = scores, offset
        else:
            self.prompt_logprobs.extend(scores)

    def cut(self, room: int) -> tuple[RequestUpdate | None, int]:
        """Keep about ``room`` bytes, at least one item; returns the remainder, if any, and the bytes kept."""
        begun = _REQUEST_BYTES + self.opening_bytes
        whole = begun + self.closing_bytes + sum(part.wire_bytes for part in self.choices.values())
        if self.prompt_logprobs is not None:
            whole += len(self.prompt_logprobs) * self.prompt_logprobs.entry_bytes
        if whole <= room:
            return None, whole
        rest = RequestUpdate(self.request_id, self.epoch)
        choices, self.choices = self.choices, {}
        used = begun + self._cut_prompt(rest, room - begun)
        if rest.prompt_logprobs is not None:
            rest.choices = choices
        else:
            used += self._cut_choices(choices, rest, room - used)
        if rest.prompt_logprobs is None and not rest.choices:
            return None, used + self.closing_bytes
        rest.closing, self.closing = self.closing, None
        rest.closing_bytes, self.closing_bytes = self.closing_bytes, 0
        return rest, used

    def _cut_prompt(self, rest: RequestUpdate, room: int) -> int:
        """Move the prompt's log probabilities that do not fit to ``rest``; returns the bytes kept."""
        scores = self.prompt_logprobs
        if scores is None:
            return 0
        count = min(len(scores), max(room // scores.entry_bytes, 0 if self.opening is not None else 1))
        if count < len(scores):
            self.prompt_logprobs = scores.take(count) if count else None
            rest.prompt_logprobs, rest.prompt_offset = scores, self.prompt_offset + count
        return count * scores.entry_bytes

    def _cut_choices(self, choices: dict[int, ChoiceUpdate], rest: RequestUpdate, room: int) -> int:
        """Move the deltas that do not fit to ``rest``, keeping at least one item; returns the bytes kept."""
        used = 0
        for choice, part in choices.items():
            if used < room or not (self.choices or self.opening is not None or self.prompt_logprobs is not None):
                self.choices[choice], size = part.cut(room - used)
                used += size
            if self.choices.get(choice) is not part:
                rest.choices[choice] = part
        return used


class Outboxes:
    """The outboxes of a process, bounded singly and together.

    A reader whose outbox exceeds its bound is disconnected. When all together exceed theirs, the tenant with the most
    bytes loses the reader of its largest outbox, so that no other tenant suffers.
    """

    def __init__(self, max_bytes: int = MAX_UNREAD_BYTES) -> None:
        """``max_bytes``: the bound of one outbox."""
        self.max_bytes = max_bytes
        self.max_total = _READERS * max_bytes
        self.total = 0
        """Bytes in all outboxes."""
        self._open: dict[Outbox, tuple[str, Callable[[], None]]] = {}

    def open(
        self, tenant: str, on_overflow: Callable[[], None], *, on_added: Callable[[], None] = lambda: None
    ) -> Outbox:
        """An outbox for a reader of ``tenant``.

        ``on_overflow`` is called when the outbox is closed for too many unread bytes; it must not use this object.
        ``on_added`` is called whenever something is added.
        """
        outbox = Outbox(self, on_added)
        self._open[outbox] = tenant, on_overflow
        return outbox

    def close(self, outbox: Outbox) -> None:
        """Empty and close an outbox. Idempotent."""
        self._open.pop(outbox, None)
        outbox.closed = True
        outbox.clear()

    def overflow(self, outbox: Outbox) -> None:
        """Close ``outbox`` if it exceeds its bound, else the largest one of the tenant with the most bytes."""
        if outbox.size <= self.max_bytes:
            outbox = self._largest()
        _, on_overflow = self._open[outbox]
        self.close(outbox)
        on_overflow()

    def _largest(self) -> Outbox:
        held: dict[str, int] = {}
        for outbox, (tenant, _) in self._open.items():
            held[tenant] = held.get(tenant, 0) + outbox.size
        most = max(held, key=held.__getitem__)
        return max((box for box, (tenant, _) in self._open.items() if tenant == most), key=lambda box: box.size)


class Outbox:
    """The unread updates for one reader, in order of the requests' first updates. Made by ``Outboxes.open``.

    A client's outbox has no epochs: accepted output is never replaced.
    """

    def __init__(self, outboxes: Outboxes, on_added: Callable[[], None]) -> None:
        self._outboxes = outboxes
        self._on_added = on_added
        self._updates: dict[str, RequestUpdate] = {}
        self.size = 0
        """Unread bytes, including those of the last ``take``, which may still be in flight."""
        self._taken = 0
        """Bytes of the last ``take``."""
        self.closed = False
        """Whether everything added is dropped."""

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return anything."""
        return bool(self._updates)

    def delta(
        self,
        request_id: str,
        choice: int,
        first_position: int,
        ids: Sequence[int],
        text: str,
        logprobs: PackedLogprobs | None = None,
        parts: TypedParts | None = None,
        *,
        epoch: int = 0,
    ) -> None:
        """Add tokens and the text they complete, following those held. Takes ownership of ``logprobs``."""
        if (update := self._of(request_id, epoch)) is not None:
            size = _TOKEN_BYTES * len(ids) + _UTF8_BYTES * len(text)
            if logprobs is not None:
                size += len(logprobs) * logprobs.entry_bytes
            held = _DELTA_HELD + _ID_HELD * len(ids)
            if parts is not None:
                size += parts.wire_bytes
                held += _PIECE_HELD * len(parts.pieces)
            held += size
            if (part := update.choices.get(choice)) is None:
                part = update.choices[choice] = ChoiceUpdate(first_position)
                held += _CHOICE_HELD + _CHOICE_BYTES
            part.add(ids, text, logprobs, parts, size)
            self._grow(update, held)

    def end(self, request_id: str, choice: int, end: ChoiceEnd, *, epoch: int = 0) -> None:
        """End a choice; nothing may follow."""
        if (update := self._of(request_id, epoch)) is not None:
            held = 0
            if (part := update.choices.get(choice)) is None:
                part = update.choices[choice] = ChoiceUpdate(end.position)
                held += _CHOICE_HELD + _CHOICE_BYTES
            part.end = end
            if end.parts is not None:
                part.wire_bytes += end.parts.wire_bytes
                held += end.parts.wire_bytes + _PIECE_HELD * len(end.parts.pieces)
            self._grow(update, held)

    def open(self, request_id: str, opening: object, size: int) -> None:
        """Set the message that is sent first; ``size``: its bytes on the wire."""
        if (update := self._of(request_id)) is not None:
            update.opening, update.opening_bytes = opening, size
            self._grow(update, size)

    def prefill(self, request_id: str, prefill: Prefill, *, epoch: int = 0) -> None:
        if (update := self._of(request_id, epoch)) is not None:
            update.prefill = prefill
            self._grow(update, 0)

    def prompt_logprobs(self, request_id: str, offset: int, scores: PackedLogprobs, *, epoch: int = 0) -> None:
        """Takes ownership of ``scores``."""
        if (update := self._of(request_id, epoch)) is not None:
            update.add_prompt_logprobs(offset, scores)
            self._grow(update, update.measure() - max(update.held, _REQUEST_HELD))

    def notice(self, request_id: str, notice: object) -> None:
        """Add a message that is sent before the deltas."""
        if (update := self._of(request_id)) is not None:
            update.notices.append(notice)
            self._grow(update, _NOTICE_HELD)

    def close(self, request_id: str, closing: object, size: int = 0) -> None:
        """Set the message that is sent last; ``size``: its bytes on the wire, if there are many."""
        if (update := self._of(request_id)) is not None:
            update.closing, update.closing_bytes = closing, size
            self._grow(update, size)

    def drop(self, request_id: str, epoch: int) -> None:
        """Discard what is pending of a request under ``epoch`` or a lower one."""
        update = self._updates.get(request_id)
        if update is not None and update.epoch <= epoch:
            del self._updates[request_id]
            self._shrink(update.held)

    def clear(self) -> None:
        self._updates.clear()
        self._taken = 0
        self._shrink(self.size)

    def take(self, max_bytes: int) -> list[RequestUpdate]:
        """Remove and return about ``max_bytes`` of updates, at least one delta.

        A delta is never split. A request that fits only in part moves to the end of the order. Bytes taken stay counted
        until the next call, because only then have they been written.
        """
        self._shrink(self._taken)
        self._taken = 0
        taken: list[RequestUpdate] = []
        size = 0
        while self._updates and size < max_bytes:
            request_id, update = next(iter(self._updates.items()))
            del self._updates[request_id]
            rest, used = update.cut(max_bytes - size)
            size += used
            taken.append(update)
            self._taken += update.held
            if rest is not None:
                self._updates[request_id] = rest
                rest.held = rest.measure()
                self._taken -= rest.held
        return taken

    def _of(self, request_id: str, epoch: int = 0) -> RequestUpdate | None:
        """The update to add to; None if closed or a higher epoch is held. An update of a lower epoch is dropped."""
        update = self._updates.get(request_id)
        if self.closed:
            return None
        self._on_added()
        if update is None or update.epoch < epoch:
            if update is not None:
                self._shrink(update.held)
            update = self._updates[request_id] = RequestUpdate(request_id, epoch)
        return update if update.epoch == epoch else None

    def _grow(self, update: RequestUpdate, size: int) -> None:
        if self.closed:
            return  # closed by the overflow that an earlier call of the same operation caused
        if not update.held:
            size += _REQUEST_HELD
        outboxes = self._outboxes
        update.held += size
        self.size += size
        outboxes.total += size
        if self.size > outboxes.max_bytes or outboxes.total > outboxes.max_total:
            outboxes.overflow(self)

    def _shrink(self, size: int) -> None:
        self.size -= size
        self._outboxes.total -= size
