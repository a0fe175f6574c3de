"""Idefics3 and SmolVLM: square tiles of an enlarged picture, each an item, and the whole picture behind them."""

from __future__ import annotations

import math

from text_core.pictures.base import ItemPlan, PictureFacts, PicturePlan, PictureProcessor, Resample, ViewPlan
from text_core.pictures.facts import (
    CONFIG,
    MAX_VIEW_SIDE,
    PREPROCESSOR,
    flag,
    integer,
    must_resize,
    resample,
    token_of,
)

_MAX_SIDE = 4096
"""Pixels along the longer side of an enlarged picture, whatever the configuration says; as in transformers."""
_TILES_ALONG = 4
"""The longer side of an enlarged picture in tiles, where the configuration says nothing."""

_FAKE, _GLOBAL = "<fake_token_around_image>", "<global-img>"


class Idefics3(PictureProcessor):
    """As transformers' processor, with its two sizes on the way, each rounded to whole pixels."""

    def __init__(self, facts: PictureFacts) -> None:
        given, config = facts.preprocessor, facts.config
        must_resize(given)
        self.placeholder, self.item_token_id = token_of(facts, ("image_token_id",), "<image>")
        self.item_token = self.placeholder
        image_size = integer(config, "vision_config.image_size", 364, file=CONFIG, most=MAX_VIEW_SIDE)
        self._tile = integer(given, "max_image_size.longest_edge", image_size, file=PREPROCESSOR)
        if self._tile != image_size:
            raise ValueError(
                f"{PREPROCESSOR}: max_image_size.longest_edge is {self._tile}, but image_size in {CONFIG} {image_size}"
            )
        patch = integer(config, "vision_config.patch_size", 14, file=CONFIG, most=self._tile)
        scale = integer(config, "scale_factor", 2, file=CONFIG, most=1024)
        self._num_tokens = (self._tile // patch) ** 2 // scale**2
        if self._num_tokens < 1:
            raise ValueError(f"{CONFIG}: scale_factor {scale} leaves no tokens of {self._tile // patch} patches")
        usual = _TILES_ALONG * self._tile
        self._longest = integer(given, "size.longest_edge", usual, file=PREPROCESSOR, most=MAX_VIEW_SIDE)
        self._splits = flag(given, "do_image_splitting", True)
        self._resample = resample(given, Resample.LANCZOS)

    def plan(self, width: int, height: int) -> PicturePlan:
        tile = self._tile
        first = self._enlarged(width, height)
        if not self._splits:
            return PicturePlan((self._item((first,), tile, tile),), self._whole_text)
        second = self._in_tiles(*first)
        columns, rows = second[0] // tile, second[1] // tile
        if columns * rows == 1:
            return PicturePlan((self._item((first,), tile, tile),), self._whole_text)
        items = [
            self._item((first,), *second, crop=(tile * column, tile * row, tile * (column + 1), tile * (row + 1)))
            for row in range(rows)
            for column in range(columns)
        ]
        items.append(self._item((first, second), tile, tile))
        lines = [
            "".join(f"{_FAKE}<row_{row + 1}_col_{column + 1}>{self.item_token}" for column in range(columns))
            for row in range(rows)
        ]
        return PicturePlan(tuple(items), "".join(f"{line}\n" for line in lines) + "\n" + self._whole_text)

    @property
    def _whole_text(self) -> str:
        return f"{_FAKE}{_GLOBAL}{self.item_token}{_FAKE}"

    def _item(
        self,
        through: tuple[tuple[int, int], ...],
        width: int,
        height: int,
        crop: tuple[int, int, int, int] | None = None,
    ) -> ItemPlan:
        view = ViewPlan(width, height, self._resample, through=through, crop=crop)
        return ItemPlan((view,), self._num_tokens)

    def _enlarged(self, width: int, height: int) -> tuple[int, int]:
        """Width and height with the longer side as configured."""
        aspect = width / height
        if width >= height:
            width, height = self._longest, _even(int(self._longest / aspect))
        else:
            width, height = _even(int(self._longest * aspect)), self._longest
        width, height = max(width, 1), max(height, 1)
        aspect = width / height
        if width >= height and width > _MAX_SIDE:
            width, height = _MAX_SIDE, int(_MAX_SIDE / aspect)
        elif height > width and height > _MAX_SIDE:
            width, height = int(_MAX_SIDE * aspect), _MAX_SIDE
        return max(width, 1), max(height, 1)

    def _in_tiles(self, width: int, height: int) -> tuple[int, int]:
        """Width and height as multiples of a tile's."""
        aspect = width / height
        if width >= height:
            width = self._rounded_up(width)
            return width, self._rounded_up(int(width / aspect))
        height = self._rounded_up(height)
        return self._rounded_up(int(height * aspect)), height

    def _rounded_up(self, side: int) -> int:
        return math.ceil(side / self._tile) * self._tile


def _even(side: int) -> int:
    return side + side % 2
