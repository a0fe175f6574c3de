"""Pictures of random pixels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine_core.media import Picture, PictureShape, View


def random_picture(shape: PictureShape, sides: Iterable[tuple[int, int]], seed: int = 0) -> Picture:
    """With views of these heights and widths."""
    rng = np.random.default_rng(seed)
    return Picture.of(
        shape,
        [
            View(height, width, rng.integers(0, 256, (height, width, 3), dtype=np.uint8).tobytes())
            for height, width in sides
        ],
    )
