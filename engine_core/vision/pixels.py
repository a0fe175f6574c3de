"""From pixels of 8 bits to the patches that a tower takes: rescaled, normalized, cut.

Symbols in shapes: H and W pixels of a view, P pixels of a patch's side, C channels.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.media import CHANNELS, Picture, PictureShape, View

FIELD = "media"
"""Of a request; named by its errors."""
_VALUES = 256


class Normalization:
    """(value · rescale_factor − image_mean) / image_std of each channel, as transformers' processors compute it.

    A table of all values, so that a pixel's number does not depend on its place.
    """

    def __init__(
        self, preprocessor: Mapping[str, Any], mean: Sequence[float] = (0.5,) * 3, std: Sequence[float] = (0.5,) * 3
    ) -> None:
        """``mean`` and ``std``: the family's, for fields that ``preprocessor`` lacks. Raises ``CheckpointError``."""
        factor = _numbers(preprocessor, "rescale_factor", (1 / 255,))[0] if _flag(preprocessor, "do_rescale") else 1.0
        values = np.repeat((np.arange(_VALUES) * factor).astype(np.float32)[None], CHANNELS, 0)
        if _flag(preprocessor, "do_normalize"):
            means = _numbers(preprocessor, "image_mean", mean).astype(np.float32)
            deviations = _numbers(preprocessor, "image_std", std).astype(np.float32)
            if not np.all(deviations):
                raise CheckpointError(f"image_std={preprocessor['image_std']!r} is not usable: expected no zeros")
            values = (values - means[:, None]) / deviations[:, None]
        self._table = torch.from_numpy(values).flatten()

    def __call__(self, view: View) -> torch.Tensor:
        """[H, W, C] float32 on the host."""
        pixels = torch.from_numpy(np.frombuffer(view.pixels, np.uint8).astype(np.int32))
        places = pixels.view(view.height, view.width, CHANNELS) + torch.arange(CHANNELS) * _VALUES
        return self._table[places]


def patches_of(image: torch.Tensor, side: int, *, channels_last: bool = False) -> torch.Tensor:
    """[⌊H / P⌋ · ⌊W / P⌋, P · P · C]: the whole patches of ``image`` [H, W, C], row by row.

    A patch's numbers stand as in a convolution's weight [C, P, P], or [P, P, C] if ``channels_last``.
    """
    rows, columns = image.shape[0] // side, image.shape[1] // side
    cut = image[: rows * side, : columns * side].reshape(rows, side, columns, side, CHANNELS)
    order = (0, 2, 1, 3, 4) if channels_last else (0, 2, 4, 1, 3)
    return cut.permute(order).reshape(rows * columns, side * side * CHANNELS)


def check_pixels(view: View) -> None:
    """Raise ``InvalidRequestError`` unless ``view`` has as many bytes as its sides say."""
    if len(view.pixels) != view.height * view.width * CHANNELS:
        raise InvalidRequestError(
            FIELD,
            f"a view of {view.height} x {view.width} pixels has {len(view.pixels)} bytes: expected "
            f"{view.height * view.width * CHANNELS}, {CHANNELS} for each pixel",
        )


def check_single_view(picture: Picture, height: int, width: int, shape: PictureShape) -> None:
    """Raise ``InvalidRequestError`` unless ``picture`` is one view of that size and has that shape."""
    if len(picture.views) != 1:
        raise InvalidRequestError(FIELD, f"a picture has {len(picture.views)} views: this model takes one")
    if ((view := picture.views[0]).height, view.width) != (height, width):
        problem = f"a view has {view.height} x {view.width} pixels: expected {height} x {width}"
        raise InvalidRequestError(FIELD, problem)
    check_pixels(view)
    if picture.shape != shape:
        problem = f"{picture.shape} is not that of a view of {height} x {width} pixels: expected {shape}"
        raise InvalidRequestError(FIELD, problem)


def gray_picture(shape: PictureShape, height: int, width: int) -> Picture:
    """A picture of one gray view."""
    return Picture.of(shape, [View(height, width, bytes([127]) * (height * width * CHANNELS))])


def _flag(preprocessor: Mapping[str, Any], name: str) -> bool:
    """A field that is true unless it is given."""
    value = preprocessor.get(name)
    return True if value is None else bool(value)


def _numbers(preprocessor: Mapping[str, Any], name: str, default: Sequence[float]) -> npt.NDArray[np.float64]:
    """As many numbers as in ``default``, or one for all."""
    value = default if preprocessor.get(name) is None else preprocessor[name]
    numbers = value if isinstance(value, list | tuple) else [value] * len(default)
    if len(numbers) != len(default) or not all(_is_number(each) for each in numbers):
        raise CheckpointError(f"{name}={value!r} is not usable: expected {len(default)} numbers")
    return np.array(numbers, np.float64)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
