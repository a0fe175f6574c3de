"""DeepSeek-OCR and DeepSeek-OCR 2: the whole picture on a square, and before it in the prompt crops of a large one.

A picture's views are the whole, then its crops, row by row.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from text_core.pictures.base import (
    ItemPlan,
    PictureError,
    PictureFacts,
    PicturePlan,
    PictureProcessor,
    Resample,
    ViewPlan,
)
from text_core.pictures.facts import PREPROCESSOR, color, flag, integer, most_tokens, resample, token_of

_PIXELS_PER_TOKEN = 64
"""Along a side: SAM's patches of 16 pixels, of which convolutions make a quarter along each side."""
_LARGEST_SIDE = 2048
_MAX_CROPS = 255
_GRAY = (127, 127, 127)
_Grid = tuple[int, int]
"""Columns and rows of crops."""


class _Cropping(PictureProcessor):
    """What both versions share."""

    crop_size: ClassVar[int]
    """Pixels along a side of a crop, where the configuration says nothing."""

    def __init__(self, facts: PictureFacts) -> None:
        given = facts.preprocessor
        self.placeholder, self.item_token_id = token_of(facts, ("image_token_id", "image_token_index"), "<image>")
        self.item_token = self.placeholder
        usual = integer(given, "size.height", 1024, file=PREPROCESSOR, most=_LARGEST_SIDE)
        self._whole = _side(given, ("base_size",), usual)
        self._crop = _side(given, ("image_size", "tile_size"), self.crop_size)
        self._crops = flag(given, "crop_mode", flag(given, "crop_to_patches", True))
        least = integer(given, _present(given, ("min_crops", "min_patches")), 2, file=PREPROCESSOR, most=_MAX_CROPS)
        most = integer(given, _present(given, ("max_crops", "max_patches")), 6, file=PREPROCESSOR, most=_MAX_CROPS)
        self._color = color(given, "background_color", _GRAY)
        self._resample = resample(given, Resample.BICUBIC)
        self._max_tokens = most_tokens(facts)
        grids = [
            (columns, rows)
            for columns in range(1, most + 1)
            for rows in range(1, most // columns + 1)
            if columns * rows >= least and self._num_tokens(self._whole, (columns, rows)) <= self._max_tokens
        ]
        self._grids = sorted(grids, key=lambda grid: grid[0] * grid[1])

    @abstractmethod
    def _num_tokens(self, whole: int, grid: _Grid | None) -> int:
        """Tokens of a picture; ``whole``: pixels along a side of the whole view."""

    @abstractmethod
    def _whole_view(self, width: int, height: int) -> ViewPlan: ...

    def plan(self, width: int, height: int) -> PicturePlan:
        whole = self._whole_view(width, height)
        is_large = max(width, height) > self._crop
        grid = self._best_grid(width, height) if self._crops and is_large and self._grids else None
        num_tokens = self._num_tokens(whole.size[0], grid)
        if num_tokens > self._max_tokens:
            raise PictureError(f"it takes {num_tokens} tokens, more than the {self._max_tokens} that are accepted")
        columns, rows = grid or (0, 0)
        item = ItemPlan((whole, *self._crop_views(columns, rows)), num_tokens, rows, columns)
        return PicturePlan((item,), self.item_token)

    def _crop_views(self, columns: int, rows: int) -> list[ViewPlan]:
        size = self._crop
        return [
            ViewPlan(
                columns * size,
                rows * size,
                self._resample,
                crop=(column * size, row * size, (column + 1) * size, (row + 1) * size),
            )
            for row in range(rows)
            for column in range(columns)
        ]

    def _best_grid(self, width: int, height: int) -> _Grid:
        """The grid whose proportions are nearest; of equal ones the larger, if the picture fills half of it."""
        best, best_distance = (1, 1), math.inf
        for columns, rows in self._grids:
            distance = abs(width / height - columns / rows)
            fills = width * height > 0.5 * self._crop * self._crop * columns * rows
            if distance < best_distance or (distance == best_distance and fills):
                best, best_distance = (columns, rows), distance
        return best

    def _padded(self, size: int, width: int, height: int, at: tuple[int, int]) -> ViewPlan:
        """A picture of ``width`` × ``height`` on a square."""
        if (width, height) == (size, size):
            return ViewPlan(width, height, self._resample)
        return ViewPlan(width, height, self._resample, canvas=(size, size), canvas_at=at, canvas_color=self._color)


class DeepSeekOcr(_Cropping):
    """The first version: rows of all tokens end with a token of their own. Unlimited-OCR has the same pictures."""

    crop_size = 640

    def _num_tokens(self, whole: int, grid: _Grid | None) -> int:
        side = whole // _PIXELS_PER_TOKEN
        tokens = side * (side + 1) + 1
        if grid is not None:
            columns, rows = (number * (self._crop // _PIXELS_PER_TOKEN) for number in grid)
            tokens += rows * (columns + 1)
        return tokens

    def _whole_view(self, width: int, height: int) -> ViewPlan:
        """As ``ImageOps.pad`` in the model's own code; without crops, a small square takes the picture distorted."""
        size = self._whole
        if not self._crops and size <= self.crop_size:
            return ViewPlan(size, size, self._resample)
        new_width = new_height = size
        if width > height:
            new_height = max(1, round(height / width * size))
        elif height > width:
            new_width = max(1, round(width / height * size))
        at = round((size - new_width) * 0.5), round((size - new_height) * 0.5)
        return self._padded(size, new_width, new_height, at)


class DeepSeekOcr2(_Cropping):
    """The second version, as transformers' processor."""

    crop_size = 768

    def _num_tokens(self, whole: int, grid: _Grid | None) -> int:
        columns, rows = grid or (0, 0)
        return (whole // _PIXELS_PER_TOKEN) ** 2 + columns * rows * (self._crop // _PIXELS_PER_TOKEN) ** 2 + 1

    def _whole_view(self, width: int, height: int) -> ViewPlan:
        size = self._whole if self._crops else self._crop
        scale = size / max(width, height)
        new_width, new_height = max(1, round(width * scale)), max(1, round(height * scale))
        return self._padded(size, new_width, new_height, ((size - new_width) // 2, (size - new_height) // 2))


def _present(given: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The first of the fields that is there."""
    return next((name for name in names if given.get(name) is not None), names[0])


def _side(given: Mapping[str, Any], names: tuple[str, ...], usual: int) -> int:
    name = _present(given, names)
    side = integer(given, name, usual, file=PREPROCESSOR, most=_LARGEST_SIDE)
    if side % _PIXELS_PER_TOKEN:
        raise ValueError(f"{PREPROCESSOR}: {name} is {side}, not a multiple of {_PIXELS_PER_TOKEN}")
    return side
