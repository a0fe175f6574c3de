"""A picture as a whole and in crops, as DeepSeek-OCR's processors cut it: sizes, and what they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.media import CHANNELS, MAX_VIEWS, Picture, PictureShape, View
from engine_core.vision.pixels import FIELD, check_pixels

_LARGEST_SIDE = 2048
"""Pixels; the largest published mode has 1,280."""

TokensOf = Callable[[int, int, int, int], int]
"""The tokens of a picture, from those along a side of the whole and of a crop, and the rows and columns of crops."""


@dataclass(frozen=True, slots=True)
class CropSizes:
    """Sizes in pixels, and how many crops there may be."""

    whole: int
    """Along a side of the view of the whole picture."""
    crop: int
    """Along a side of a crop; of the whole, if nothing is cropped."""
    min_crops: int
    """Where there are any."""
    max_crops: int
    """0: none are made."""
    pixels_per_token: int
    """Along a side."""

    @classmethod
    def of(cls, preprocessor: Mapping[str, Any], *, crop_size: int, pixels_per_token: int) -> CropSizes:
        """Of ``preprocessor_config.json``, with vLLM's defaults but for ``crop_size``. Raises ``CheckpointError``."""
        sizes = preprocessor.get("size")
        of_size = sizes.get("height") if isinstance(sizes, Mapping) else None
        whole = _number(preprocessor, ("base_size",), 1024 if of_size is None else of_size, _LARGEST_SIDE)
        crop = _number(preprocessor, ("image_size", "tile_size"), crop_size, _LARGEST_SIDE)
        least = _number(preprocessor, ("min_crops", "min_patches"), 2, MAX_VIEWS - 1)
        most = _number(preprocessor, ("max_crops", "max_patches"), 6, MAX_VIEWS - 1)
        for name, side in (("base_size", whole), ("image_size", crop)):
            if side % pixels_per_token:
                raise CheckpointError(
                    f"preprocessor_config.json: {name}={side} is not usable: expected a multiple of {pixels_per_token}"
                )
        crops = preprocessor.get("crop_mode", preprocessor.get("crop_to_patches", True))
        return cls(whole, crop, least, most if crops else 0, pixels_per_token)

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Rows and columns of crops that a picture may have; (0, 0): none."""
        most = self.max_crops
        return [(0, 0)] + [
            (rows, columns)
            for rows in range(1, most + 1)
            for columns in range(1, most // rows + 1)
            if rows * columns >= self.min_crops
        ]

    def most(self, tokens_of: TokensOf) -> int:
        """Tokens of the largest picture."""
        return max(self._tokens(self.whole, *grid, tokens_of) for grid in self.grids)

    def check(self, picture: Picture, tokens_of: TokensOf) -> None:
        """Raise ``InvalidRequestError`` unless the picture is such as these sizes make."""
        shape, views = picture.shape, picture.views
        grid = shape.rows, shape.columns
        if grid not in self.grids or len(views) != 1 + shape.rows * shape.columns:
            self._refuse(f"{len(views)} views with {shape.rows} × {shape.columns} crops")
        wholes = (self.whole,) if self.max_crops else (self.whole, self.crop)
        for index, view in enumerate(views):
            sides = (self.crop,) if index else wholes
            if view.height != view.width or view.height not in sides:
                self._refuse(
                    f"view {index} has {view.width} × {view.height} pixels, not {' or '.join(map(str, sides))}"
                )
            check_pixels(view)
        tokens = self._tokens(views[0].height, *grid, tokens_of)
        given = shape.num_tokens, shape.token_rows, shape.token_columns
        if given != (tokens, 0, 0):
            self._refuse(f"(tokens, token_rows, token_columns) is {given}, not {(tokens, 0, 0)}")

    def example(self, num_tokens: int, tokens_of: TokensOf) -> Picture:
        """The largest grey picture of at most ``num_tokens``, or the smallest."""
        sizes = {grid: self._tokens(self.whole, *grid, tokens_of) for grid in self.grids}
        fitting = [grid for grid, tokens in sizes.items() if tokens <= num_tokens]
        rows, columns = max(fitting, key=sizes.__getitem__) if fitting else (0, 0)
        sides = [self.whole] + [self.crop] * (rows * columns)
        shape = PictureShape(sizes[rows, columns], rows, columns)
        return Picture.of(shape, (View(side, side, b"\x7f" * (side * side * CHANNELS)) for side in sides))

    def _tokens(self, whole: int, rows: int, columns: int, tokens_of: TokensOf) -> int:
        return tokens_of(whole // self.pixels_per_token, self.crop // self.pixels_per_token, rows, columns)

    def _refuse(self, problem: str) -> None:
        raise InvalidRequestError(FIELD, f"{problem}: expected what the model's processor makes of a picture")


def _number(fields: Mapping[str, Any], names: tuple[str, ...], default: Any, most: int) -> int:
    """The first of the fields ``names`` that is there."""
    name = next((name for name in names if fields.get(name) is not None), names[0])
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= most:
        raise CheckpointError(
            f"preprocessor_config.json: {name}={value!r} is not usable: expected a whole number from 1 to {most}"
        )
    return value
