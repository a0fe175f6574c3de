"""Pictures after their preparation: the pixels of their views, as they go to an engine."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from text_core.pictures.base import ItemPlan, PicturePlan

DIGEST_BYTES = 32
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class PreparedView:
    """One rectangle that is encoded."""

    width: int
    """Pixels, like ``height``."""
    height: int
    pixels: bytes = field(repr=False)
    """[height, width, 3]: red, green, blue."""


@dataclass(frozen=True, slots=True)
class PreparedItem:
    """One run of tokens: what an engine calls a picture."""

    plan: ItemPlan
    views: tuple[PreparedView, ...]
    digest: bytes
    """As the contract's MediaChunk says it."""

    @staticmethod
    def of(plan: ItemPlan, views: Iterable[PreparedView]) -> PreparedItem:
        """With its digest."""
        views = tuple(views)
        return PreparedItem(plan, views, digest_of(plan, views))

    @property
    def nbytes(self) -> int:
        """Bytes of its pixels."""
        return sum(len(view.pixels) for view in self.views)


@dataclass(frozen=True, slots=True)
class PreparedPicture:
    """One picture of a sender."""

    plan: PicturePlan
    items: tuple[PreparedItem, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its pixels."""
        return sum(item.nbytes for item in self.items)


def digest_of(plan: ItemPlan, views: Iterable[PreparedView]) -> bytes:
    """BLAKE2b over the shape and all pixels; the same as ``engine_core.media.digest_of``."""
    views = tuple(views)
    sides = [side for view in views for side in (view.height, view.width)]
    header = [*sides, plan.rows, plan.columns, plan.token_rows, plan.token_columns, plan.num_tokens]
    digest = blake2b(struct.pack(f"<{len(header)}I", *header), digest_size=DIGEST_BYTES)
    for view in views:
        digest.update(view.pixels)
    return digest.digest()
