"""DeepSeek-OCR 2 (https://arxiv.org/abs/2601.20552): SAM's encoder, then learned queries over its features, over the
whole picture and over crops of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.layers.part_factory import PartFactory
from engine_core.media import Picture, View, VisionShape
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.vision.crops import CropSizes
from engine_core.vision.deepseek_config import (
    read_number,
    read_projector,
    read_query_encoder,
    read_sam,
    read_transformers_query_encoder,
    read_transformers_sam,
)
from engine_core.vision.pixels import Normalization
from engine_core.vision.query_encoder import QueryEncoder, QueryEncoderShape
from engine_core.vision.sam import PIXELS_PER_TOKEN, SamEncoder, SamShape

_QUERIES = {768: "model.qwen2_model.query_768.weight", 1024: "model.qwen2_model.query_1024.weight"}
"""By the pixels along a side of the views that they are for; as many as a view has features."""
_SEPARATOR = "model.view_seperator"
_OF_VISION = ("model.sam_model.", "model.qwen2_model.", "model.projector.")


class DeepseekOcr2Vision(VisionModel):
    """A picture's views are the whole picture, then its crops, row by row; its tokens are those of one crop after the
    other, of the whole picture, and a separator.
    """

    model_type = "deepseek_vl_v2"

    @classmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        cls._encoders(config)
        return VisionShape(_sizes(preprocessor).most(_tokens_of))

    @classmethod
    def renamed(cls, name: str) -> str | None:
        return name if name.startswith(_OF_VISION) or name == _SEPARATOR else None

    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        self.shape = shape
        self._sizes = _sizes(preprocessor)
        self._normalization = Normalization(preprocessor)
        sam, encoder, hidden = self._encoders(config)
        self.sam = SamEncoder(sam, "model.sam_model", parts)
        self.encoder = QueryEncoder(encoder, "model.qwen2_model.model.model", parts)
        queries = {name: ((side // PIXELS_PER_TOKEN) ** 2, encoder.width) for side, name in _QUERIES.items()}
        self.learned = parts.learned({**queries, _SEPARATOR: (hidden,)})
        self.projector = parts.linear("model.projector.layers", encoder.width, hidden, bias=True)
        self._dtype, self._device = parts.dtype, parts.device

    def encode(self, picture: Picture) -> Encoded:
        self.check(picture)
        whole, *crops = (self._tokens(view) for view in picture.views)
        return Encoded(torch.cat([*crops, whole, self.learned[_SEPARATOR][None]]))

    def check(self, picture: Picture) -> None:
        self._sizes.check(picture, _tokens_of)

    def example(self, num_tokens: int) -> Picture:
        return self._sizes.example(num_tokens, _tokens_of)

    def _tokens(self, view: View) -> torch.Tensor:
        """[queries, H] of a view."""
        features = self.sam(self._normalization(view).to(self._device, self._dtype))
        return self.projector(self.encoder(features.flatten(0, 1), self.learned[_QUERIES[view.height]]))

    @classmethod
    def _encoders(cls, config: PretrainedConfig) -> tuple[SamShape, QueryEncoderShape, int]:
        """Sizes of both encoders, and the projector's outputs. Raises as ``read_shape`` does."""
        # SAM's last channels are the encoder's width, though the published config.json says 1024
        encoder, sam = read_query_encoder(config), read_sam(config)
        channels = (sam.downsample_channels[0], encoder.width)
        return replace(sam, downsample_channels=channels), encoder, read_projector(config, encoder.width)


class TransformersDeepseekOcr2Vision(DeepseekOcr2Vision):
    """With config.json as transformers writes it."""

    model_type = "deepseek_ocr2"

    @classmethod
    def _encoders(cls, config: PretrainedConfig) -> tuple[SamShape, QueryEncoderShape, int]:
        encoder, sam = read_transformers_query_encoder(config), read_transformers_sam(config)
        if sam.downsample_channels[1] != encoder.width:
            raise CheckpointError(
                f"config.json: the encoder's width {encoder.width} is not that of SAM's features, "
                f"{sam.downsample_channels[1]}"
            )
        return sam, encoder, read_number(config, "text_config.hidden_size")


def _sizes(preprocessor: Mapping[str, Any]) -> CropSizes:
    sizes = CropSizes.of(preprocessor, crop_size=768, pixels_per_token=PIXELS_PER_TOKEN)
    for name, side in (("base_size", sizes.whole), ("image_size", sizes.crop)):
        if side not in _QUERIES:
            known = " or ".join(map(str, _QUERIES))
            raise CheckpointError(f"preprocessor_config.json: {name}={side} is not usable: expected {known}")
    return sizes


def _tokens_of(whole: int, crop: int, rows: int, columns: int) -> int:
    """As ``crops.TokensOf``."""
    return rows * columns * crop**2 + whole**2 + 1
