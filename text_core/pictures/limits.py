"""How much one picture may take."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PICTURE_BYTES = 20 << 20
MAX_PICTURE_PIXELS = 64_000_000
MAX_PICTURE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Limits of one picture; what is above is refused before anything is decoded."""

    max_bytes: int = MAX_PICTURE_BYTES
    """Of its file."""
    max_pixels: int = MAX_PICTURE_PIXELS
    """Width times height."""
    max_seconds: float = MAX_PICTURE_SECONDS
    """Of computing, to decode it and to make its views."""
