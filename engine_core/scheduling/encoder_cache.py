"""The cache of pictures' embeddings: which are kept on the workers, and how far a step gets with them.

A picture is encoded in the first step that computes a row of it and does not find its embeddings. The cache has room
for a number of tokens, and a step encodes at most so many; the largest picture always fits into both. A chunk of a
prompt ends before a picture whose embeddings are not there and cannot be made in this step. It may end inside of a
picture, except where a picture's tokens attend to each other in both directions.

Steps that others wait for encode a *portion* of tokens. A larger picture is encoded over several of them, before its
rows are computed: one picture at a time, the first in rank that is found missing. Its room in the cache is taken from
the start, but whoever holds embeddings may need it; then the encoding is given up, as it is if its request ends.

Embeddings are held by steps in flight that read them, and by running sequences that have computed a part of the
picture's rows, so such a sequence can always go on. All others may be forgotten, those unused for the longest time
first. Sequences that wait hold nothing, thus whoever is first in rank finds room sooner or later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from engine_core.media import Picture, Placeholder
from engine_core.scheduling.stats import Counters
from engine_core.scheduling.step_in_flight import StepInFlight
from engine_core.sequence import Sequence, SequenceGroup
from engine_core.step import EncoderPortion


@dataclass(slots=True)
class _InPortions:
    """A picture that is encoded over several steps."""

    key: bytes
    tokens: int
    group: SequenceGroup
    """Whose rows need it."""
    offset: int
    """Of its first token in the prompt."""
    done: int = 0
    """Tokens' worth of its work that is planned."""


class EncoderCacheManager:
    """Knows which embeddings the workers keep: they follow its plans."""

    def __init__(
        self,
        capacity: int,
        step_tokens: int,
        portion_tokens: int,
        counters: Counters,
        *,
        attends_both_ways: bool = False,
    ) -> None:
        """``capacity``: tokens that are kept. ``step_tokens``: the most that a step encodes; ``portion_tokens``: while
        others wait.
        """
        self.capacity = capacity
        self._step_tokens = step_tokens
        self._portion_tokens = portion_tokens
        self._counters = counters
        self._attends_both_ways = attends_both_ways
        self._room = step_tokens
        """Tokens that the step that is being planned may still encode."""
        self._others_wait = False
        """For that step."""
        self._missing: _InPortions | None = None
        """The first picture in rank that it needs and does not encode, as it is larger than a portion."""
        self._begun: _InPortions | None = None
        """The picture that is encoded over several steps."""
        self._tokens: dict[bytes, int] = {}
        """Of the embeddings that are kept, by key."""
        self._holders: dict[bytes, int] = {}
        """How many hold them, by key; those without holders are not here."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Keys without holders, those unused for the longest time first."""
        self._num_kept = 0
        self.num_held = 0
        """Tokens with holders."""

    def begin_step(self, *, others_wait: bool = False) -> None:
        """``others_wait``: for tokens that follow each other, so the step must not encode for long."""
        self._room = self._portion_tokens if others_wait else self._step_tokens
        self._others_wait = others_wait
        self._missing = None

    def undivided(self, group: SequenceGroup, start: int) -> int:
        """The fewest rows of ``group`` from ``start`` on that a step can compute."""
        if self._attends_both_ways and (place := next(_within(group, start, start + 1), None)) is not None:
            return place.end - start
        return 1

    def reach(self, group: SequenceGroup, start: int, end: int) -> int:
        """Where a chunk that begins at ``start`` ends: at ``end``, or before a picture that this step cannot have."""
        new, held = 0, self.num_held
        seen = set()
        for place in _within(group, start, end):
            if place.key not in seen:
                seen.add(place.key)
                tokens = place.shape.num_tokens
                new += tokens if place.key not in self._tokens else 0
                held += 0 if place.key in self._holders else tokens
            is_cut = self._attends_both_ways and place.end > end
            if is_cut or new > self._room or held > self.capacity:
                self._note_missing(group, place)
                return max(start, place.offset)
        return end

    def take(self, seq: Sequence, start: int, end: int, step: StepInFlight) -> None:
        """Plan what the rows ``start`` … ``end`` − 1 of ``seq`` need, as far as ``reach`` allows."""
        partial = None
        missing = []
        for place in _within(seq.group, start, end):
            self._counters.encoder_cache_uses += place.key != seq.partial_picture
            if place.key in self._tokens:
                self._counters.encoder_cache_hits += place.key != seq.partial_picture
                self._hold_for(step, place.key)
            else:
                missing.append(place)
            partial = place.key if place.end > end else None
        for place in missing:  # last, because their room must not be that of others in this chunk
            if place.key not in self._tokens:
                self._encode(place.key, seq.group.picture_at(place.offset), step)
            self._hold_for(step, place.key)
        if partial is not None:
            self._hold(partial)
        self.stop(seq)
        seq.partial_picture = partial

    def stop(self, seq: Sequence) -> None:
        """Release what ``seq`` holds: it runs no more, or has computed the rest of the picture."""
        if seq.partial_picture is not None:
            self._release(seq.partial_picture)
            seq.partial_picture = None

    def end_step(self, step: StepInFlight) -> None:
        """Release what ``step`` holds, whose results have arrived."""
        for key in step.pictures:
            self._release(key)

    def plan_portion(self, step: StepInFlight) -> None:
        """Plan to go on with the picture that is encoded over several steps, or begin one that ``step`` has missed."""
        if self._begun is not None and not self._begun.group.is_live:
            self._give_up(step)
        if not self._others_wait:
            return
        is_first = self._begun is None
        if is_first and (missing := self._missing) is not None and missing.tokens + self.num_held <= self.capacity:
            self._make_room(missing.tokens, step)
            self._num_kept += missing.tokens
            self._begun = missing
        if (begun := self._begun) is None:
            return
        begun.done = min(begun.done + self._portion_tokens, begun.tokens)
        picture = begun.group.picture_at(begun.offset) if is_first else None
        step.portion = EncoderPortion(begun.key, picture, begun.done / begun.tokens)
        if begun.done == begun.tokens:
            self._begun = None
            self._tokens[begun.key] = begun.tokens
            self._idle[begun.key] = None
            self._count(begun.tokens)

    def _note_missing(self, group: SequenceGroup, place: Placeholder) -> None:
        tokens = place.shape.num_tokens
        if self._missing is None and tokens > self._portion_tokens and place.key not in self._tokens:
            self._missing = _InPortions(place.key, tokens, group, place.offset)

    def _give_up(self, step: StepInFlight) -> None:
        """Forget the picture that is encoded over several steps."""
        assert self._begun is not None
        step.forgotten_pictures.append(self._begun.key)
        self._num_kept -= self._begun.tokens
        self._begun = None

    def _make_room(self, tokens: int, step: StepInFlight) -> None:
        """Forget what is needed least, so that there is room for ``tokens``."""
        while self._num_kept + tokens > self.capacity:
            if not self._idle:
                self._give_up(step)
                continue
            oldest, _ = self._idle.popitem(last=False)
            self._num_kept -= self._tokens.pop(oldest)
            step.forgotten_pictures.append(oldest)

    def _encode(self, key: bytes, picture: Picture, step: StepInFlight) -> None:
        tokens = picture.shape.num_tokens
        if self._begun is not None and self._begun.key == key:  # the step does the rest of it
            self._num_kept -= tokens
            self._begun = None
        self._make_room(tokens, step)
        self._tokens[key] = tokens
        self._num_kept += tokens
        self._room -= tokens
        step.encoded_pictures.append((key, picture))
        self._count(tokens)

    def _count(self, tokens: int) -> None:
        self._counters.encoded_pictures += 1
        self._counters.encoded_picture_tokens += tokens

    def _hold_for(self, step: StepInFlight, key: bytes) -> None:
        if key not in step.pictures:
            step.pictures.add(key)
            self._hold(key)

    def _hold(self, key: bytes) -> None:
        if key not in self._holders:
            self._idle.pop(key, None)
            self._holders[key] = 0
            self.num_held += self._tokens[key]
        self._holders[key] += 1

    def _release(self, key: bytes) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._idle[key] = None
            self.num_held -= self._tokens[key]


def _within(group: SequenceGroup, start: int, end: int) -> Iterator[Placeholder]:
    """The pictures that rows ``start`` … ``end`` − 1 are of."""
    places = group.placeholders
    if not places or start >= places[-1].end:
        return
    for index in range(bisect_right(places, start, key=lambda place: place.end), len(places)):
        if places[index].offset >= end:
            return
        yield places[index]
