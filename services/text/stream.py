"""The text of one choice: ids in, deltas out, stop strings found; what a detokenizer keeps per choice.

A delta is atomic: an id is delivered together with the text it completes. An id is held back while the text through it
ends in a possible beginning of a stop string, or in an unfinished character (see ``incremental`` for its bound).
Everything is decided token by token, so the outcome does not depend on how the ids were cut into calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.text.incremental import IncrementalDecoder
from services.text.pieces import Pieces
from services.text.stops import stop_strings


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How a request's ids become text; the same for all its choices."""

    context: tuple[int, ...] = ()
    """The end of the prompt: left context of the first text (see ``incremental.left_context``)."""
    stop: tuple[str, ...] = ()
    """Stop strings."""
    include_stop_str_in_output: bool = False
    """Deliver the stop string's text, and that of an eos or stop token."""
    min_tokens: int = 0
    """Stop strings that end in the text of the first so many output tokens do not count."""


class Delta(NamedTuple):
    """What is delivered next."""

    first_position: int
    """Output position of the first id."""
    token_ids: tuple[int, ...]
    text: str
    """The text these ids complete; cut, in the last delta, at a stop string."""
    stop: str | None = None
    """The stop string that ended the choice with this delta; its last id completes it."""

    @property
    def end(self) -> int:
        """Ids delivered so far, with these; at a stop string, where it stops."""
        return self.first_position + len(self.token_ids)


class ChoiceDecoder:
    """Turns the ids of one choice into deltas.

    Feed ids from position 0 on. The first ``delivered`` of them, delivered before by another decoder, leave the state
    as it was there and are not delivered again.
    """

    __slots__ = (
        "_begun",
        "_decoder",
        "_ids",
        "_marks",
        "_options",
        "_silent",
        "_stops",
        "_text",
        "delivered",
        "received",
        "stopped",
    )

    def __init__(self, pieces: Pieces, options: DecodeOptions, delivered: int = 0) -> None:
        self._options = options
        self._decoder = IncrementalDecoder(pieces, options.context)
        self._stops = stop_strings(options.stop)
        self._begun = ""
        """The end of the text that may become a stop string."""
        self._silent = delivered
        """Ids that are only taken note of."""
        self._ids: list[int] = []
        """Ids not delivered."""
        self._text = ""
        """Their text, as far as it is complete."""
        self._marks: list[tuple[int, int]] = []
        """Whole points between those, as (ids, characters)."""
        self.received = 0
        """Ids fed."""
        self.delivered = delivered
        """Ids delivered, here or before."""
        self.stopped = False
        """A stop string was found: nothing follows."""

    def feed(self, token_ids: Sequence[int]) -> Delta | None:
        """Take the ids that follow; returns what can be delivered now, if anything."""
        if self.stopped:
            return None
        return self._absorb(token_ids) or self._deliver()

    def finish(self, token_ids: Sequence[int] = (), *, stop_token: bool = False) -> Delta:
        """Take the last ids, at the end of the choice; returns all that is left, possibly nothing.

        ``stop_token``: the last of ``token_ids`` is an eos or stop token that ended the choice. It is delivered, but
        its text only with ``include_stop_str_in_output``. A stop string found before the end is reported as such.
        """
        if self.stopped:
            return Delta(self.delivered, (), "")
        silenced = token_ids[-1:] if stop_token and not self._options.include_stop_str_in_output else ()
        delta = self._absorb(token_ids[: len(token_ids) - len(silenced)]) or self._flush()
        if delta is not None:
            return delta
        self.received += len(silenced)
        if self.received > self._silent:
            self._ids += silenced
        return self._release(len(self._ids), len(self._text))

    def _absorb(self, token_ids: Sequence[int]) -> Delta | None:
        """Decode ids without delivering any; returns the last delta if a stop string ends the choice."""
        decoder, searching = self._decoder, self._stops is not None
        for token_id in token_ids:
            whole = decoder.whole
            text = own = decoder.push(token_id)
            self.received += 1
            if self.received > self._silent:
                if self._ids:
                    self._mark(whole)
                elif decoder.earlier is not None:
                    own = text[decoder.earlier :]  # the rest was delivered with the ids before
                self._ids.append(token_id)
                self._text += own
            if searching and text:
                delta = self._search(text)
                if delta is not None:
                    return delta
        return None

    def _mark(self, whole: bool) -> None:
        """Note the point before the last id pushed if it is whole; ``whole``: it was before that id."""
        earlier = 0 if whole else self._decoder.earlier
        if earlier is not None:
            self._marks.append((len(self._ids), len(self._text) + earlier))

    def _flush(self) -> Delta | None:
        """Add what stands for an unfinished character; returns the last delta if a stop string ends in it."""
        whole = self._decoder.whole
        text = self._decoder.flush()
        if self._ids or whole:  # else it was delivered with the ids before
            self._text += text
        return self._search(text)

    def _search(self, text: str) -> Delta | None:
        """Look for stop strings in the text that the last id completed; returns the last delta if one ends there."""
        if self._stops is None:
            return None
        too_early = self.received <= self._options.min_tokens
        self._begun, match = self._stops.find(self._begun, text, too_early)
        if match is None:
            return None
        self.stopped = True
        end = len(self._text) - len(text) + match.end
        cut = end if self._options.include_stop_str_in_output else end - len(match.stop)
        # A stop string that begins in text delivered earlier by another decoder cannot be cut there any more.
        return self._release(len(self._ids), max(cut, 0), match.stop)

    def _deliver(self) -> Delta | None:
        """Release the ids up to the last whole point before a possible stop string."""
        held = 0 if self._options.include_stop_str_in_output else len(self._begun)
        if not held and self._decoder.whole:
            return self._release_all() if self._ids else None
        limit = len(self._text) - held
        for index in range(len(self._marks), 0, -1):
            ids, characters = self._marks[index - 1]
            if characters <= limit:
                self._marks = [(i - ids, c - characters) for i, c in self._marks[index:]]
                return self._release(ids, characters)
        return None

    def _release_all(self) -> Delta:
        delta = Delta(self.delivered, tuple(self._ids), self._text)
        self.delivered = self.received
        self._ids.clear()
        self._marks.clear()
        self._text = ""
        return delta

    def _release(self, ids: int, characters: int, stop: str | None = None) -> Delta:
        delta = Delta(self.delivered, tuple(self._ids[:ids]), self._text[:characters], stop)
        self.delivered += ids
        del self._ids[:ids]
        self._text = self._text[characters:]
        return delta
