"""Positions and rows of pictures in a step, against a plain loop over tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine_core.media import PictureShape, Placeholder, VisionShape
from engine_core.worker.media_inputs import NO_MEDIA, BatchMedia, MediaSpan

THREE = VisionShape(64, mrope_section=(1, 1, 2))
BOTH_WAYS = VisionShape(64, attends_both_ways=True)


def items(rng: random.Random, length: int) -> tuple[Placeholder, ...]:
    """Some pictures, of which some have no sides, or none at all."""
    found, at = list[Placeholder](), rng.randrange(6)
    while rng.random() < 0.8:
        rows, columns = rng.randrange(1, 7), rng.randrange(1, 7)
        if at + rows * columns > length:
            break
        sides = (rows, columns) if rng.random() < 0.8 else (0, 0)
        shape = PictureShape(rows * columns, token_rows=sides[0], token_columns=sides[1])
        found.append(Placeholder(bytes([len(found)]), at, shape))
        at += rows * columns + rng.choice((0, 1, 5))
    return tuple(found)


def counted(media: tuple[Placeholder, ...], length: int) -> list[tuple[int, int, int]]:
    """The positions of all tokens: text counts on, and so it does behind a picture's longer side."""
    positions, place, at = list[tuple[int, int, int]](), 0, 0
    for each in (*media, None):
        end = length if each is None else each.offset
        positions += [(place + i,) * 3 for i in range(end - at)]
        place, at = place + end - at, end
        if each is None:
            break
        shape = each.shape
        if shape.token_rows:
            across = shape.token_columns
            positions += [(place, place + i // across, place + i % across) for i in range(shape.num_tokens)]
            place += max(shape.token_rows, across)
        else:
            positions += [(place + i,) * 3 for i in range(shape.num_tokens)]
            place += shape.num_tokens
        at = each.end
    return positions


def arrays(work: list[tuple[int, int, int]]) -> tuple[np.ndarray, ...]:
    """Slots, first tokens, lengths, starts and indices of ``(slot, first, count)``."""
    slots, first, counts = (np.array(column) for column in zip(*work, strict=True))
    starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    indices = np.concatenate([np.arange(begin, begin + count) for _, begin, count in work])
    return slots, first, first + counts, starts, indices


@pytest.mark.parametrize("seed", range(20))
def test_positions_and_rows_are_those_of_a_loop(seed: int) -> None:
    rng, slots = random.Random(seed), 5
    three, flat = BatchMedia(slots, THREE), BatchMedia(slots, BOTH_WAYS)
    sequences = dict[int, tuple[tuple[Placeholder, ...], int]]()
    for _ in range(40):
        slot, length = rng.randrange(slots), rng.randrange(2, 80)
        sequences[slot] = items(rng, length), length + 20
        for each in (three, flat):
            each.set(slot, sequences[slot][0])
        work = list[tuple[int, int, int]]()
        for chosen in rng.sample(sorted(sequences), rng.randrange(1, len(sequences) + 1)):
            first = rng.randrange(sequences[chosen][1])
            work.append((chosen, first, rng.randrange(1, sequences[chosen][1] - first + 1)))
        step = three.of_step(*arrays(work))
        expected = [row for at, first, count in work for row in counted(*sequences[at])[first : first + count]]
        found = step.rotary_positions if step.rotary_positions is not None else step.positions
        if step is NO_MEDIA:
            found = arrays(work)[4]
        assert found is not None
        assert np.array_equal(np.broadcast_to(found, (3, len(expected))).T, expected)
        check_rows(step.spans, work, sequences)
        again = flat.of_step(*arrays(work))
        assert again.spans == step.spans
        assert again.positions is again.rotary_positions is None
        until = np.zeros(len(expected)) if again.visible_until is None else again.visible_until
        # of a picture that is cut, which the scheduler never does then, rows see what there is
        assert until.tolist() == [
            min(end_at(sequences[at][0], first + i), first + count) for at, first, count in work for i in range(count)
        ]


def end_at(media: tuple[Placeholder, ...], index: int) -> int:
    return next((each.end for each in media if each.offset <= index < each.end), 0)


def check_rows(
    spans: tuple[MediaSpan, ...],
    work: list[tuple[int, int, int]],
    sequences: dict[int, tuple[tuple[Placeholder, ...], int]],
) -> None:
    found = [(span.first_row + i, span.key, span.first + i) for span in spans for i in range(span.count)]
    expected, row = list[tuple[int, bytes, int]](), 0
    for slot, first, count in work:
        for index in range(first, first + count):
            expected += [
                (row, each.key, index - each.offset) for each in sequences[slot][0] if each.offset <= index < each.end
            ]
            row += 1
    assert found == expected


def test_without_pictures_there_is_nothing_to_do() -> None:
    batch = BatchMedia(2, THREE)
    batch.set(0, ())
    assert batch.of_step(*arrays([(0, 0, 3), (1, 5, 1)])) is NO_MEDIA


def test_behind_its_pictures_a_sequence_has_one_position_a_row() -> None:
    """So its steps are those of text."""
    batch = BatchMedia(1, THREE)
    batch.set(0, (Placeholder(b"a", 2, PictureShape(12, token_rows=3, token_columns=4)),))
    step = batch.of_step(*arrays([(0, 14, 2)]))
    assert step.spans == ()
    assert step.rotary_positions is None
    assert step.positions is not None
    assert step.positions.tolist() == [6, 7]  # 2 of text, 4 for the picture
