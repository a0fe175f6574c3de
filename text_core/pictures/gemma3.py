"""Gemma 3: a square of one size, and with pan and scan further ones, of parts of a long picture."""

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
    number,
    resample,
    token_of,
)

_MAX_CROPS = 256


class Gemma3(PictureProcessor):
    """As transformers' processor; pan and scan is off unless the configuration switches it on."""

    def __init__(self, facts: PictureFacts) -> None:
        given, config = facts.preprocessor, facts.config
        must_resize(given)
        self.placeholder, _ = token_of(facts, ("boi_token_index", "boi_token_id"), "<start_of_image>")
        self.item_token, self.item_token_id = token_of(
            facts, ("image_token_index", "image_token_id"), "<image_soft_token>"
        )
        end, _ = token_of(facts, ("eoi_token_index", "eoi_token_id"), "<end_of_image>")
        self._text = f"\n\n{self.placeholder}{self.item_token}{end}\n\n"
        self._side = integer(config, "vision_config.image_size", 896, file=CONFIG, most=MAX_VIEW_SIDE)
        for name in ("height", "width"):
            if (stated := integer(given, f"size.{name}", self._side, file=PREPROCESSOR)) != self._side:
                raise ValueError(f"{PREPROCESSOR}: size.{name} is {stated}, but image_size in {CONFIG} {self._side}")
        self._num_tokens = integer(config, "mm_tokens_per_image", 256, file=CONFIG)
        self._resample = resample(given, Resample.BILINEAR)
        self._scans = flag(given, "do_pan_and_scan", False)
        self._min_crop = integer(given, "pan_and_scan_min_crop_size", 256, file=PREPROCESSOR)
        self._max_crops = integer(given, "pan_and_scan_max_num_crops", 4, file=PREPROCESSOR, most=_MAX_CROPS)
        self._min_ratio = number(given, "pan_and_scan_min_ratio_to_activate", 1.2)

    def plan(self, width: int, height: int) -> PicturePlan:
        crops = self._crops(width, height) if self._scans else []
        items = tuple(self._item(source) for source in (None, *crops))
        if not crops:
            return PicturePlan(items, self._text)
        further = " ".join([self._text] * len(crops))
        text = f"Here is the original image {self._text} and here are some crops to help you see better {further}"
        return PicturePlan(items, text)

    def _item(self, source: tuple[int, int, int, int] | None) -> ItemPlan:
        view = ViewPlan(self._side, self._side, self._resample, source=source)
        return ItemPlan((view,), self._num_tokens)

    def _crops(self, width: int, height: int) -> list[tuple[int, int, int, int]]:
        """Parts of a picture that is much longer than wide, side by side along its longer side."""
        long, short = max(width, height), min(width, height)
        if long / short < self._min_ratio:
            return []
        count = min(math.floor(long / self._min_crop), math.floor(long / short + 0.5))
        count = min(max(2, count), self._max_crops)
        size = math.ceil(long / count)
        if min(size, short) < self._min_crop:
            return []
        parts = [(start, min(start + size, long)) for start in range(0, long, size)][:count]
        if width >= height:
            return [(start, 0, end, height) for start, end in parts]
        return [(0, start, width, end) for start, end in parts]
