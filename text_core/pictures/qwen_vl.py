"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: one view of any size, a token for each square of merged patches."""

from __future__ import annotations

import math

from text_core.pictures.base import (
    ItemPlan,
    PictureError,
    PictureFacts,
    PicturePlan,
    PictureProcessor,
    Resample,
    ViewPlan,
)
from text_core.pictures.facts import CONFIG, PREPROCESSOR, integer, most_tokens, must_resize, resample, token_of

MAX_ASPECT = 200
_MIN_PIXELS = 56 * 56
_MAX_PIXELS = 28 * 28 * 1280


class QwenVL(PictureProcessor):
    """The smart resize of the Qwen family: sides become multiples of a token's side, and the area stays in bounds."""

    def __init__(self, facts: PictureFacts) -> None:
        given, config = facts.preprocessor, facts.config
        must_resize(given)
        self.placeholder, self.item_token_id = token_of(facts, ("image_token_id",), "<|image_pad|>")
        self.item_token = self.placeholder
        patch = integer(config, "vision_config.patch_size", 14, file=CONFIG, most=1024)
        merge = integer(config, "vision_config.spatial_merge_size", 2, file=CONFIG, most=64)
        if (stated := integer(given, "patch_size", patch, file=PREPROCESSOR)) != patch:
            raise ValueError(f"{PREPROCESSOR}: patch_size is {stated}, but in {CONFIG} {patch}")
        if (stated := integer(given, "merge_size", merge, file=PREPROCESSOR)) != merge:
            raise ValueError(f"{PREPROCESSOR}: merge_size is {stated}, but spatial_merge_size in {CONFIG} {merge}")
        self._side = patch * merge
        self._max_tokens = most_tokens(facts)
        least = integer(given, "size.shortest_edge", _MIN_PIXELS, file=PREPROCESSOR)
        most = integer(given, "size.longest_edge", _MAX_PIXELS, file=PREPROCESSOR)
        most = integer(given, "max_pixels", most, file=PREPROCESSOR)
        self._max_pixels = max(min(most, self._max_tokens * self._side**2), self._side**2)
        self._min_pixels = min(integer(given, "min_pixels", least, file=PREPROCESSOR), self._max_pixels)
        self._resample = resample(given, Resample.BICUBIC)

    def plan(self, width: int, height: int) -> PicturePlan:
        long, short = max(width, height), min(width, height)
        if long / short > MAX_ASPECT:
            raise PictureError(
                f"it is {width} × {height} pixels, and this model takes no picture whose longer side is more than "
                f"{MAX_ASPECT} times the shorter one; cut or pad it"
            )
        rows, columns = self._grid(width, height)
        view = ViewPlan(columns * self._side, rows * self._side, self._resample)
        item = ItemPlan((view,), rows * columns, token_rows=rows, token_columns=columns)
        return PicturePlan((item,), self.item_token)

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens."""
        side = self._side
        rows, columns = round(height / side), round(width / side)
        pixels = rows * columns * side**2
        if pixels > self._max_pixels:
            shrink = math.sqrt(height * width / self._max_pixels)
            rows = max(1, math.floor(height / shrink / side))
            columns = max(1, math.floor(width / shrink / side))
        elif pixels < self._min_pixels:
            grow = math.sqrt(self._min_pixels / (height * width))
            rows, columns = math.ceil(height * grow / side), math.ceil(width * grow / side)
        # A long narrow picture keeps one row, and so may have more tokens than max_pixels allows.
        most = self._max_tokens
        if rows > columns:
            return min(rows, max(1, most // columns)), min(columns, most)
        return min(rows, most), min(columns, max(1, most // rows))
