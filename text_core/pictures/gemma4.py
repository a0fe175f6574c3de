"""Gemma 4: one view in the picture's own proportions, as large as a number of tokens allows."""

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

_MAX_TOKENS = 280


class Gemma4(PictureProcessor):
    """As transformers' processor. A token is a square of pooled patches."""

    def __init__(self, facts: PictureFacts) -> None:
        given, config = facts.preprocessor, facts.config
        must_resize(given)
        self.placeholder, self.item_token_id = token_of(facts, ("image_token_id",), "<|image|>")
        self.item_token = self.placeholder
        begin, _ = token_of(facts, ("boi_token_id",), "<|image>")
        end, _ = token_of(facts, ("eoi_token_id",), "<image|>")
        self._text = f"{begin}{self.item_token}{end}"
        patch = integer(config, "vision_config.patch_size", 16, file=CONFIG, most=1024)
        pooled = integer(config, "vision_config.pooling_kernel_size", 3, file=CONFIG, most=64)
        for name, own in (("patch_size", patch), ("pooling_kernel_size", pooled)):
            if (stated := integer(given, name, own, file=PREPROCESSOR)) != own:
                raise ValueError(f"{PREPROCESSOR}: {name} is {stated}, but in {CONFIG} {own}")
        self._side = patch * pooled
        self._max_tokens = min(integer(given, "max_soft_tokens", _MAX_TOKENS, file=PREPROCESSOR), most_tokens(facts))
        self._resample = resample(given, Resample.BICUBIC)

    def plan(self, width: int, height: int) -> PicturePlan:
        rows, columns = self._grid(width, height)
        view = ViewPlan(columns * self._side, rows * self._side, self._resample)
        return PicturePlan((ItemPlan((view,), rows * columns),), self._text)

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens. Raises ``PictureError``."""
        most = self._max_tokens
        scale = math.sqrt(most * self._side**2 / (width * height))
        rows, columns = math.floor(scale * height / self._side), math.floor(scale * width / self._side)
        if rows == 0 and columns == 0:
            raise PictureError(f"this model sees at most {most} tokens of a picture, too few for any")
        if rows == 0:
            rows, columns = 1, min(width // height, most)
        elif columns == 0:
            rows, columns = min(height // width, most), 1
        if rows * columns > most:
            raise PictureError(
                f"it is {width} × {height} pixels, which takes {rows * columns} tokens, more than this model's {most}; "
                "cut or pad it"
            )
        return rows, columns
