"""Pictures of random pixels."""

from __future__ import annotations

import numpy as np
from PIL import Image

from engine_core.media import Picture, PictureShape, View


def random_view(height: int, width: int, seed: int = 0) -> View:
    """A view of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return View(height, width, pixels.tobytes())


def random_picture(shape: PictureShape, *sides: tuple[int, int], seed: int = 0) -> Picture:
    """A picture of views of noise with these heights and widths."""
    return Picture.of(shape, [random_view(*side, 1000 * seed + number) for number, side in enumerate(sides)])


def image_of(view: View) -> Image.Image:
    """What a processor of transformers takes."""
    return Image.frombytes("RGB", (view.width, view.height), view.pixels)
