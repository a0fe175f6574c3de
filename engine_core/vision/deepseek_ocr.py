"""DeepSeek-OCR (https://arxiv.org/abs/2510.18234): SAM's encoder, then CLIP's over its features, over the whole picture
and over crops of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.layers.part_factory import PartFactory
from engine_core.media import Picture, View, VisionShape
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.vision.clip import ClipEncoder, ClipShape
from engine_core.vision.crops import CropSizes
from engine_core.vision.deepseek_config import read_clip, read_projector, read_sam
from engine_core.vision.pixels import Normalization
from engine_core.vision.sam import PIXELS_PER_TOKEN, SamEncoder, SamShape
from engine_core.weights.features import Features

_PROJECTOR = "model.projector.layers"
_NEWLINE, _SEPARATOR = "model.image_newline", "model.view_seperator"
_OF_VISION = ("model.sam_model.", "model.vision_model.", "model.projector.")
_UNUSED = tuple(f"model.vision_model.embeddings.{name}" for name in ("patch_embedding.weight", "position_ids"))
"""CLIP's own embedding of pixels, in whose place are SAM's features, and a range that checkpoints may have which the
published code saved again.
"""


class DeepseekOcrVision(VisionModel):
    """A picture's views are the whole picture, then its crops, row by row; its tokens are the crops', joined to one
    grid, the whole picture's, and a separator. Each row of a grid ends with a token of its own.
    """

    model_type = "deepseek_vl_v2"

    @classmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        _encoders(config)
        return VisionShape(_sizes(preprocessor).most(_tokens_of))

    @classmethod
    def renamed(cls, name: str) -> str | None:
        is_own = name.startswith(_OF_VISION) or name in (_NEWLINE, _SEPARATOR)
        return name if is_own and name not in _UNUSED else None

    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        self.shape = shape
        self._sizes = _sizes(preprocessor)
        self._normalization = Normalization(preprocessor)
        sam, clip, hidden = _encoders(config)
        self.sam = SamEncoder(sam, "model.sam_model", parts)
        self.clip = ClipEncoder(clip, "model.vision_model", parts)
        both = Features(1, 2 * clip.width, parts=(clip.width, clip.width))
        self.projector = parts.linear(_PROJECTOR, both, hidden, bias=True)
        self.marks = parts.learned({_NEWLINE: (hidden,), _SEPARATOR: (hidden,)})
        self._dtype, self._device = parts.dtype, parts.device

    def encode(self, picture: Picture) -> Encoded:
        self.check(picture)
        whole, *crops = (self._grid(view) for view in picture.views)
        grids = [whole]
        if crops:
            columns = picture.shape.columns
            rows = [torch.cat(crops[first : first + columns], dim=1) for first in range(0, len(crops), columns)]
            grids = [torch.cat(rows), whole]
        return Encoded(torch.cat([*map(self._with_newlines, grids), self.marks[_SEPARATOR][None]]))

    def check(self, picture: Picture) -> None:
        self._sizes.check(picture, _tokens_of)

    def example(self, num_tokens: int) -> Picture:
        return self._sizes.example(num_tokens, _tokens_of)

    def _grid(self, view: View) -> torch.Tensor:
        """[S, S, H] of a view."""
        pixels = self._normalization(view).to(self._device, self._dtype)
        features = self.sam(pixels)
        side = features.shape[0]
        both = torch.cat([self.clip(features), features.flatten(0, 1)], dim=1)
        return self.projector(both).view(side, side, -1)

    def _with_newlines(self, grid: torch.Tensor) -> torch.Tensor:
        """[rows · (columns + 1), H] of ``grid`` [rows, columns, H]."""
        ends = self.marks[_NEWLINE].expand(len(grid), 1, -1)
        return torch.cat([grid, ends], dim=1).flatten(0, 1)


def _encoders(config: PretrainedConfig) -> tuple[SamShape, ClipShape, int]:
    """Sizes of both encoders, and the projector's outputs. Raises ``CheckpointError``, ``UnsupportedModelError``."""
    sam, clip = read_sam(config), read_clip(config)
    if clip.width != sam.downsample_channels[1]:
        raise CheckpointError(
            f"config.json: CLIP's width {clip.width} is not that of SAM's features, {sam.downsample_channels[1]}"
        )
    return sam, clip, read_projector(config, 2 * clip.width)


def _sizes(preprocessor: Mapping[str, Any]) -> CropSizes:
    return CropSizes.of(preprocessor, crop_size=640, pixels_per_token=PIXELS_PER_TOKEN)


def _tokens_of(whole: int, crop: int, rows: int, columns: int) -> int:
    """As ``crops.TokensOf``."""
    return rows * crop * (columns * crop + 1) + whole * (whole + 1) + 1
