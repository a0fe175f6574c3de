"""Pictures as the engine takes them: pixels of 8 bits and their shape (``Picture``), and their place in a prompt
(``MediaItem`` with the pixels, ``Placeholder`` without).

A family's processor makes a picture's *views*: the whole picture resized, crops or tiles of it. What the model sees is
a function of these alone, so a picture is known by the digest of its views and its shape.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

MEDIA_DIGEST_BYTES = 32
MAX_VIEWS = 256
MAX_SIDE = 1 << 16
"""Pixels along one side of a view."""
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class View:
    """One rectangle that is encoded."""

    height: int
    """Pixels, like ``width``."""
    width: int
    pixels: bytes = field(repr=False)
    """[height, width, 3]: red, green, blue."""


@dataclass(frozen=True, slots=True)
class PictureShape:
    """What is known of a picture without its pixels."""

    num_tokens: int
    """Tokens of a prompt that it takes the place of, ≥ 1."""
    rows: int = 0
    """Rows and ``columns`` of the views that are crops; 0 if none is. Which views are crops, the family says."""
    columns: int = 0
    token_rows: int = 0
    """Height and width (``token_columns``) in tokens, for positions in three dimensions; 0: positions as of text."""
    token_columns: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture's pixels and shape."""

    shape: PictureShape
    views: tuple[View, ...]
    digest: bytes

    @staticmethod
    def of(shape: PictureShape, views: Iterable[View]) -> Picture:
        """With its digest."""
        views = tuple(views)
        return Picture(shape, views, digest_of(shape, views))

    @property
    def nbytes(self) -> int:
        """Bytes of its pixels."""
        return sum(len(view.pixels) for view in self.views)


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture in a prompt."""

    picture: Picture
    offset: int
    """Index of the first of the prompt's tokens that it takes the place of."""

    @property
    def end(self) -> int:
        """Index behind its last token."""
        return self.offset + self.picture.shape.num_tokens


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A picture's place in a sequence, as workers see it."""

    key: bytes
    """Of its embeddings, as ``embedding_key`` makes it."""
    offset: int
    shape: PictureShape

    @property
    def end(self) -> int:
        """Index behind its last token."""
        return self.offset + self.shape.num_tokens


@dataclass(frozen=True, slots=True)
class VisionShape:
    """What scheduling, memory and positions need to know of a model that sees pictures."""

    max_tokens: int
    """Tokens of the largest picture."""
    shrinks: bool = False
    """Whether pictures are seen in their own proportions, and shrunk to ``max_tokens`` whatever that is."""
    limit: int = 64
    """Most pictures of a prompt, as senders count them."""
    parts: int = 1
    """Most pictures here that one of a sender's becomes: tiles of it, and the whole."""
    attends_both_ways: bool = False
    """Whether a picture's tokens attend to each other in both directions, so that no step may end inside of it."""
    both_ways_in_full: bool = True
    """Then: whether also in layers that see all tokens, or only in those with a window (Gemma 4)."""
    num_deepstack: int = 0
    """Layers behind which features of pictures are added."""
    mrope_section: tuple[int, ...] = ()
    """Pairs of a head that are rotated by time, height and width; empty: a token has one position."""
    mrope_interleaved: bool = False
    """Whether the three take turns, instead of following each other."""


def digest_of(shape: PictureShape, views: Iterable[View]) -> bytes:
    """BLAKE2b over the shape and all pixels, as the contract's MediaChunk says it."""
    views = tuple(views)
    sides = [side for view in views for side in (view.height, view.width)]
    header = [*sides, shape.rows, shape.columns, shape.token_rows, shape.token_columns, shape.num_tokens]
    digest = blake2b(struct.pack(f"<{len(header)}I", *header), digest_size=MEDIA_DIGEST_BYTES)
    for view in views:
        digest.update(view.pixels)
    return digest.digest()


def embedding_key(digest: bytes, cache_salt: bytes) -> bytes:
    """The key of a picture's embeddings: like cached blocks, only requests of equal salt share them."""
    return blake2b(cache_salt + digest, digest_size=MEDIA_DIGEST_BYTES).digest() if cache_salt else digest
