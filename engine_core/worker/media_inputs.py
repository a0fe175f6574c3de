"""Pictures in the batch: which rows of a step lie in one, and the positions that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_core.media import Placeholder, VisionShape

Array = npt.NDArray[np.int64]
_NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Neighbouring rows of a step that lie in the same picture."""

    key: bytes
    """Of the picture's embeddings."""
    first_row: int
    """Of the step."""
    first: int
    """Index of that row among the picture's tokens."""
    count: int


@dataclass(frozen=True, slots=True)
class StepMedia:
    """What a step has of pictures; T rows."""

    spans: tuple[MediaSpan, ...] = ()
    """By ascending row."""
    positions: Array | None = None
    """[T]: by which rows are rotated; None: by their indices, or by ``rotary_positions``."""
    rotary_positions: Array | None = None
    """[3, T], as in ``ForwardContext``."""
    visible_until: npt.NDArray[np.int32] | None = None
    """[T], as in ``AttentionMetadata``."""


NO_MEDIA = StepMedia()


@dataclass(frozen=True, slots=True)
class _Places:
    """A sequence's pictures as arrays: where each begins, ends, and how many columns of tokens it has."""

    items: tuple[Placeholder, ...]
    starts: Array
    """With one behind all others, which is never reached, like ``columns``."""
    ends: Array
    columns: Array
    """0: its tokens have positions as of text."""
    shifts: Array
    """By how much positions in front of picture i are less than indices; the last one is that behind all pictures."""


class BatchMedia:
    """The pictures of each slot's sequence."""

    def __init__(self, slots: int, vision: VisionShape) -> None:
        self._vision = vision
        self._places: list[_Places | None] = [None] * slots
        self._ends = np.zeros(slots, np.int64)
        """Index behind the last picture; 0 without any."""
        self._shifts = np.zeros(slots, np.int64)
        """By how much positions behind the last picture are less than indices."""

    def set(self, slot: int, items: tuple[Placeholder, ...]) -> None:
        """The sequence that takes ``slot`` has these pictures."""
        self._ends[slot] = items[-1].end if items else 0
        self._shifts[slot] = 0
        self._places[slot] = None
        if items:
            places = self._places[slot] = _places_of(items, three=bool(self._vision.mrope_section))
            self._shifts[slot] = places.shifts[-1]

    def of_step(
        self, slots: npt.NDArray[np.intp], first: Array, lengths: Array, starts: npt.NDArray[np.int32], positions: Array
    ) -> StepMedia:
        """For sequences in ``slots`` [S] that compute tokens ``first`` … ``lengths`` − 1, in the rows from ``starts``.

        ``positions`` [T]: the index of each row in its sequence.
        """
        ends = self._ends.take(slots)
        if not ends.any():
            return NO_MEDIA
        inside = [
            (places, int(first[at]), int(lengths[at]), int(starts[at]))
            for at in np.flatnonzero(ends > first).tolist()
            if (places := self._places[slots[at]]) is not None
        ]
        spans = tuple(span for each in inside for span in _spans(*each))
        flat = rotary = None
        if self._vision.mrope_section:
            flat = positions - np.repeat(self._shifts.take(slots), np.diff(starts))
            if inside:
                rotary, flat = np.tile(flat, (3, 1)), None
                for places, begin, end, row in inside:
                    rotary[:, row : row + end - begin] = _rotary(places, np.arange(begin, end))
        return StepMedia(spans, flat, rotary, self._visible_until(spans, positions))

    def _visible_until(self, spans: tuple[MediaSpan, ...], positions: Array) -> npt.NDArray[np.int32] | None:
        if not self._vision.attends_both_ways or not spans:
            return None
        until = np.zeros(len(positions), np.int32)
        for span in spans:
            until[span.first_row : span.first_row + span.count] = positions[span.first_row] + span.count
        return until


def _places_of(items: Sequence[Placeholder], *, three: bool) -> _Places:
    """``three``: whether positions have three dimensions."""
    sides = [(item.shape.token_rows, item.shape.token_columns) if three else (0, 0) for item in items]
    gained = [item.shape.num_tokens - max(side) if all(side) else 0 for item, side in zip(items, sides, strict=True)]
    return _Places(
        tuple(items),
        np.array([*(item.offset for item in items), _NEVER], np.int64),
        np.array([item.end for item in items], np.int64),
        np.array([*(columns for _, columns in sides), 0], np.int64),
        np.array([0, *gained], np.int64).cumsum(),
    )


def _spans(places: _Places, begin: int, end: int, row: int) -> list[MediaSpan]:
    """The spans of tokens ``begin`` … ``end`` − 1, of which the first is the step's ``row``."""
    spans = []
    for item in places.items[int(np.searchsorted(places.ends, begin, "right")) :]:
        if item.offset >= end:
            break
        first, last = max(begin, item.offset), min(end, item.end)
        spans.append(MediaSpan(item.key, row + first - begin, first - item.offset, last - first))
    return spans


def _rotary(places: _Places, indices: Array) -> Array:
    """[3, n]: the positions of a sequence's tokens ``indices`` [n].

    Text counts on. A picture at position p has (p, p + row, p + column); after it text goes on at p plus its longer
    side.
    """
    nearest = np.searchsorted(places.ends, indices, "right")  # the picture that a token is in, or in front of
    shifts, begins, columns = places.shifts[nearest], places.starts[nearest], places.columns[nearest]
    within = (indices >= begins) & (columns > 0)
    place, columns = indices - begins, np.maximum(columns, 1)
    top = begins - shifts
    both = np.stack([top, top + place // columns, top + place % columns])
    return np.where(within, both, indices - shifts)
