"""What transformers makes of a picture, beside what we make."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from transformers.image_utils import load_image

from tests.text_core.pictures.samples import facts_of, noise, saved
from text_core.pictures.base import PictureProcessor
from text_core.pictures.decode import prepare
from text_core.pictures.prepared import PreparedPicture, PreparedView
from text_core.pictures.registry import processor_of

SIZES = [(1, 1), (37, 53), (640, 480), (300, 1000)]
MANY_SIZES = [
    (3, 200),
    (200, 3),
    (28, 28),
    (31, 33),
    (100, 100),
    (511, 513),
    (512, 512),
    (641, 640),
    (640, 640),
    (768, 769),
    (896, 896),
    (1023, 517),
    (1240, 1754),
    (1920, 1080),
    (2048, 2048),
    (3001, 1999),
    (3000, 100),
    (97, 2903),
]
ALL_SIZES = [*SIZES, *(pytest.param(size, marks=pytest.mark.wide) for size in MANY_SIZES)]
UNCHANGED = {"do_rescale": False, "do_normalize": False}
"""Leave the pixels in [0, 255]."""


def both(
    architecture: str, preprocessor: Mapping[str, Any], reference: Any, size: tuple[int, int], **options: Any
) -> tuple[PictureProcessor, PreparedPicture, Any]:
    """Our processor and its picture, and what ``reference``, an image processor, makes of the same file."""
    data = saved(noise(*size), compress_level=0)
    processor = processor_of(facts_of(architecture, preprocessor))
    expected = reference.preprocess(load_image_of(data), **UNCHANGED, **options)
    return processor, prepare(processor, data, "image/png"), expected


def load_image_of(data: bytes) -> Any:
    """As transformers' processors open files."""
    from PIL import Image

    return load_image(Image.open(io.BytesIO(data)))


def pixels(view: PreparedView) -> npt.NDArray[np.uint8]:
    """[3, height, width]."""
    array = np.frombuffer(view.pixels, np.uint8).reshape(view.height, view.width, 3)
    return np.moveaxis(array, -1, 0)


def views(prepared: PreparedPicture) -> list[npt.NDArray[np.uint8]]:
    return [pixels(view) for item in prepared.items for view in item.views]


def expanded(processor: PictureProcessor, prepared: PreparedPicture) -> str:
    """The text with each item's tokens, as transformers' processors write it."""
    first, *rest = prepared.plan.text.split(processor.item_token)
    assert len(rest) == len(prepared.items)
    counts = (item.plan.num_tokens for item in prepared.items)
    return first + "".join(processor.item_token * count + text for count, text in zip(counts, rest, strict=True))
