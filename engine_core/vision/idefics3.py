"""The vision model of Idefics3 (https://arxiv.org/abs/2408.12637) and SmolVLM (https://arxiv.org/abs/2504.05299):
SigLIP, then a projection of squares of neighbouring patches.

The whole picture and each of its tiles are pictures of their own here, each of one square view.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.layers.part_factory import PartFactory
from engine_core.media import Picture, PictureShape, VisionShape
from engine_core.models.model_config import positive
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.vision.pixels import Normalization, check_single_view, gray_picture, patches_of
from engine_core.vision.pooling import squares_of
from engine_core.vision.siglip import SiglipShape, SiglipTower
from engine_core.weights.features import Features

_TOWER, _CONNECTOR = "vision_model", "connector"
_LONGEST_SIDE = 4096
"""Pixels; no picture is enlarged beyond it, before its sides are rounded up to whole tiles."""
_NAME = re.compile(rf"^(?:model\.)?(?P<own>(?:{_TOWER}\.(?:embeddings|encoder|post_layernorm)|{_CONNECTOR})\.\S+)$")


class Idefics3Vision(VisionModel):
    """Of ``Idefics3ForConditionalGeneration``."""

    model_type = "idefics3"

    @classmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        tower, scale = SiglipShape.read(config.vision_config), positive(config, "scale_factor")
        if tower.side % scale:
            raise CheckpointError(
                f"scale_factor={scale} is not usable: expected a divisor of the {tower.side} patches of a side "
                "(vision_config: image_size, patch_size)"
            )
        largest = preprocessor.get("max_image_size")
        if isinstance(largest, dict) and largest.get("longest_edge", tower.image_size) != tower.image_size:
            raise CheckpointError(
                f"max_image_size={largest!r} of the preprocessor is not usable: expected tiles of image_size="
                f"{tower.image_size} pixels, as in vision_config"
            )
        Normalization(preprocessor)
        tiles = math.ceil(_LONGEST_SIDE / tower.image_size) ** 2
        return VisionShape(max_tokens=(tower.side // scale) ** 2, parts=tiles + 1)

    @classmethod
    def renamed(cls, name: str) -> str | None:
        return None if (found := _NAME.match(name)) is None else found["own"]

    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        self.shape = shape
        tower, self._scale = SiglipShape.read(config.vision_config), positive(config, "scale_factor")
        text = positive(config.get_text_config(), "hidden_size")
        self._tower = SiglipTower(tower, _TOWER, parts, _places(tower.side))
        inputs = Features(self._scale**2, tower.hidden_size)
        self._projection = parts.linear(f"{_CONNECTOR}.modality_projection.proj", inputs, text)
        self._normalization = Normalization(preprocessor)
        self._dtype, self._device = parts.dtype, parts.device

    def encode(self, picture: Picture) -> Encoded:
        self.check(picture)
        tower = self._tower.shape
        patches = patches_of(self._normalization(picture.views[0]), tower.patch_size)
        hidden = self._tower(patches.to(self._device, self._dtype))
        return Encoded(self._projection(squares_of(hidden, tower.side, self._scale)))

    def check(self, picture: Picture) -> None:
        side = self._tower.shape.image_size
        check_single_view(picture, side, side, PictureShape(self.shape.max_tokens))

    def example(self, num_tokens: int) -> Picture:
        side = self._tower.shape.image_size
        return gray_picture(PictureShape(self.shape.max_tokens), side, side)


class SmolVLMVision(Idefics3Vision):
    """Of ``SmolVLMForConditionalGeneration``."""

    model_type = "smolvlm"


def _places(side: int) -> torch.Tensor:
    """[side²] int64: the row of each patch in the table of positions.

    Idefics3 finds it by its share of the side in float32, whose rounding may put a patch at its neighbour's place; a
    model is trained so.
    """
    boundaries = torch.arange(1 / side, 1.0, 1 / side)
    shares = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))
    places = torch.bucketize(shares.clamp(max=1.0 - 1e-6), boundaries, right=True)
    return (places[:, None] * side + places).flatten()
