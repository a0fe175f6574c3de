"""From a rendered chat to the prompt's ids: what stands for each picture, and how often its tokens are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from text_core.pictures.base import PictureError, PicturePlan


@dataclass(frozen=True, slots=True)
class Expanded:
    """A prompt with its pictures."""

    ids: list[int]
    offsets: list[int]
    """Index of each item's first token."""


def with_pictures(rendered: str, placeholder: str, plans: Sequence[PicturePlan]) -> str:
    """``rendered`` with each picture's text in place of its placeholder.

    Raises ``PictureError`` unless there is a placeholder for each.
    """
    pieces = rendered.split(placeholder)
    if (found := len(pieces) - 1) != len(plans):
        raise PictureError(
            f"the chat template shows {found} of {len(plans)} pictures ({placeholder!r}): expected each once, and "
            "none in texts"
        )
    texts = [pieces[0]]
    for plan, piece in zip(plans, pieces[1:], strict=True):
        texts += plan.text, piece
    return "".join(texts)


def num_expanded(ids: Sequence[int], plans: Sequence[PicturePlan]) -> int:
    """Tokens of the prompt after ``expanded``."""
    counts = [item.num_tokens for plan in plans for item in plan.items]
    return len(ids) - len(counts) + sum(counts)


def expanded(ids: Sequence[int], item_token_id: int, plans: Sequence[PicturePlan]) -> Expanded:
    """The ids with each item's token repeated. Raises ``PictureError`` unless there is one for each item."""
    counts = [item.num_tokens for plan in plans for item in plan.items]
    places = [at for at, token_id in enumerate(ids) if token_id == item_token_id]
    if len(places) != len(counts):
        raise PictureError(
            f"the prompt has the token {item_token_id}, which stands for pictures, {len(places)} times: expected "
            f"{len(counts)}, once for each part of a picture"
        )
    result: list[int] = []
    offsets: list[int] = []
    done = 0
    for place, count in zip(places, counts, strict=True):
        result += ids[done:place]
        offsets.append(len(result))
        result += [item_token_id] * count
        done = place + 1
    result += ids[done:]
    return Expanded(result, offsets)
