"""Decodes one choice: turns ids into deltas and finds stop strings. A detokenizer has one decoder per choice.

A delta is atomic: an id is delivered together with the text it completes. An id is held back while the text up to it
ends in a partial stop string, or in an unfinished character (bounded, see ``incremental_decoder``). Decisions are made
token by token, so the result does not depend on how the ids were split into calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from text_core.incremental_decoder import IncrementalDecoder
from text_core.pieces import Pieces
from text_core.stop_strings import stop_strings


class Gate(Protocol):
    """Decides where stops count; see ``answer_gate.AnswerGate``."""

    @property
    def is_open(self) -> bool: ...

    def push(self, token_id: int, text: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a request's ids become text; the same for all its choices."""

    context: tuple[int, ...] = ()
    """The end of the prompt: the left context of the first text (see ``incremental_decoder.left_context``)."""
    stop: tuple[str, ...] = ()
    """The request's stop strings."""
    include_stop_str_in_output: bool = False
    """Whether to deliver the text of the stop string, or of the eos or stop token."""
    min_tokens: int = 0
    """Stops that end within the first ``min_tokens`` output tokens do not count."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the choice here; the engine handles most stop tokens."""
    make_gate: Callable[[], Gate] | None = None
    """Makes a gate for a choice; text outside the gate is not searched for stops."""


class Delta(NamedTuple):
    """Ids and the text they complete."""

    first_position: int
    """Output position of the first id."""
    token_ids: tuple[int, ...]
    text: str
    """The text that the ids complete; in the last delta, cut at the stop string."""
    stop: str | int | None = None
    """The stop string or token that ended the choice with this delta; its last id completes it."""

    @property
    def end(self) -> int:
        """Ids delivered so far, including these; at a stop string, the position where it stops."""
        return self.first_position + len(self.token_ids)


class ChoiceDecoder:
    """Turns the ids of one choice into deltas.

    Feed ids from position 0 on. The first ``delivered`` ids, which another decoder delivered before, only restore its
    state and are not delivered again. The last of these is decoded only once the next id or the end arrives: if it is
    the eos or stop token that ended the choice, its text must be neither searched nor delivered, as in the decoder
    before.
    """

    __slots__ = (
        "_aside",
        "_boundaries",
        "_decoded",
        "_decoder",
        "_gate",
        "_ids",
        "_options",
        "_partial_stop",
        "_silent",
        "_stops",
        "_text",
        "delivered",
        "stopped",
    )

    def __init__(self, pieces: Pieces, options: DecodeOptions, delivered: int = 0) -> None:
        self._options = options
        self._decoder = IncrementalDecoder(pieces, options.context)
        self._stops = stop_strings(options.stop)
        self._gate = None if options.make_gate is None else options.make_gate()
        self._partial_stop = ""
        """The suffix of the text that may become a stop string."""
        self._silent = delivered
        """Number of ids at the start that are decoded but not delivered."""
        self._aside: tuple[int, ...] = ()
        """The last of the silent ids, set aside until the next id or the end arrives."""
        self._ids: list[int] = []
        """Held-back ids."""
        self._text = ""
        """The completed text of the held-back ids."""
        self._boundaries: list[tuple[int, int]] = []
        """Boundaries within the held-back ids: (ids, characters) before each."""
        self._decoded = 0
        """Number of ids fed, without the one set aside."""
        self.delivered = delivered
        """Number of ids delivered, by this decoder or the one before."""
        self.stopped = False
        """Whether a stop string or token was found, which ends the output."""

    @property
    def received(self) -> int:
        """Number of ids fed."""
        return self._decoded + len(self._aside)

    def feed(self, token_ids: Sequence[int]) -> Delta | None:
        """Take the next ids; returns the delta that can be delivered now, if any."""
        if self.stopped:
            return None
        if self._decoded < self._silent:
            token_ids = self._set_aside(self._with_aside(token_ids))
        return self._absorb(token_ids) or self._deliver()

    def finish(self, token_ids: Sequence[int] = (), *, stop_token: bool = False) -> Delta:
        """Take the last ids, at the end of the choice; returns the rest as a delta, which may be empty.

        ``stop_token``: the last id is the eos or stop token that ended the choice. Its id is delivered, its text only
        with ``include_stop_str_in_output``. A stop string found before it is reported as usual.
        """
        if self.stopped:
            return Delta(self.delivered, (), "")
        has_news = self.received + len(token_ids) > self._silent
        token_ids = self._with_aside(token_ids)
        silenced = token_ids[-1:] if stop_token and not self._options.include_stop_str_in_output else ()
        delta = self._absorb(token_ids[: len(token_ids) - len(silenced)]) or self._flush()
        if delta is not None:
            return delta
        self._decoded += len(silenced)
        if self._decoded > self._silent:
            self._ids += silenced
        if not has_news:
            self._text = ""  # an unfinished character was delivered with the last id
        return self._release(len(self._ids), len(self._text))

    def _with_aside(self, token_ids: Sequence[int]) -> Sequence[int]:
        """``token_ids``, preceded by the id set aside."""
        if not self._aside:
            return token_ids
        aside, self._aside = self._aside, ()
        return (*aside, *token_ids)

    def _set_aside(self, token_ids: Sequence[int]) -> Sequence[int]:
        """``token_ids``, without the last one if another decoder delivered it and nothing follows yet."""
        if not token_ids or self._decoded + len(token_ids) != self._silent:
            return token_ids
        self._aside = (token_ids[-1],)
        return token_ids[:-1]

    def _absorb(self, token_ids: Sequence[int]) -> Delta | None:
        """Decode ids and hold them back; returns the last delta if a stop string ends the choice."""
        gate, searching, stop_ids = self._gate, self._stops is not None, self._options.stop_token_ids
        for token_id in token_ids:
            if token_id in stop_ids and self._decoded >= self._options.min_tokens and (gate is None or gate.is_open):
                return self._stop_at(token_id)
            text = self._decode(token_id)
            begin = 0 if gate is None else gate.push(token_id, text)
            if begin is None:
                self._partial_stop = ""
            elif searching and len(text) > begin:
                delta = self._search(text[begin:])
                if delta is not None:
                    return delta
        return None

    def _decode(self, token_id: int) -> str:
        """Decode an id and hold it back, unless another decoder delivered it; returns the text that it completes."""
        decoder = self._decoder
        at_boundary = decoder.at_boundary
        text = own = decoder.push(token_id)
        self._decoded += 1
        if self._decoded > self._silent:
            if self._ids:
                self._add_boundary(at_boundary)
            elif decoder.boundary_offset is not None:
                own = text[decoder.boundary_offset :]  # the text before belongs to earlier ids
            self._ids.append(token_id)
            self._text += own
        return text

    def _stop_at(self, token_id: int) -> Delta:
        """The last delta, which ends with a stop token; its text counts as in ``finish``."""
        has_news = self._decoded >= self._silent
        if self._options.include_stop_str_in_output:
            self._decode(token_id)
            self._text += self._decoder.flush()
        elif (delta := self._flush()) is not None:
            return delta
        else:
            self._decoded += 1
            if has_news:
                self._ids.append(token_id)
        if not has_news:
            self._text = ""  # it was delivered with the last id
        self.stopped = True
        return self._release(len(self._ids), len(self._text), token_id)

    def _add_boundary(self, at_boundary: bool) -> None:
        """Record a boundary before the last pushed id, if there is one; ``at_boundary``: known before that id."""
        boundary_offset = 0 if at_boundary else self._decoder.boundary_offset
        if boundary_offset is not None:
            self._boundaries.append((len(self._ids), len(self._text) + boundary_offset))

    def _flush(self) -> Delta | None:
        """Add the text of an unfinished character; returns the last delta if a stop string ends in it."""
        at_boundary = self._decoder.at_boundary
        text = self._decoder.flush()
        if self._ids or at_boundary:  # else it was delivered with the ids before
            self._text += text
        return self._search(text) if self._gate is None or self._gate.is_open else None

    def _search(self, text: str) -> Delta | None:
        """Search the text that the last id completed; returns the last delta if a stop string ends there."""
        if self._stops is None:
            return None
        too_early = self._decoded <= self._options.min_tokens
        self._partial_stop, match = self._stops.find(self._partial_stop, text, too_early)
        if match is None:
            return None
        self.stopped = True
        end = len(self._text) - len(text) + match.end
        cut = end if self._options.include_stop_str_in_output else end - len(match.stop)
        # max: a stop string may begin in text that another decoder has delivered, which cannot be taken back.
        return self._release(len(self._ids), max(cut, 0), match.stop)

    def _deliver(self) -> Delta | None:
        """Deliver the ids up to the last boundary before a partial stop string."""
        held = 0 if self._options.include_stop_str_in_output else len(self._partial_stop)
        if not held and self._decoder.at_boundary:
            return self._release_all() if self._ids else None
        limit = len(self._text) - held
        for index in range(len(self._boundaries), 0, -1):
            ids, characters = self._boundaries[index - 1]
            if characters <= limit:
                self._boundaries = [(i - ids, c - characters) for i, c in self._boundaries[index:]]
                return self._release(ids, characters)
        return None

    def _release_all(self) -> Delta:
        delta = Delta(self.delivered, tuple(self._ids), self._text)
        self.delivered = self._decoded
        self._ids.clear()
        self._boundaries.clear()
        self._text = ""
        return delta

    def _release(self, ids: int, characters: int, stop: str | int | None = None) -> Delta:
        delta = Delta(self.delivered, tuple(self._ids[:ids]), self._text[:characters], stop)
        self.delivered += ids
        del self._ids[:ids]
        self._text = self._text[characters:]
        return delta
