"""Gemma 3's vision model: SigLIP, then the means of neighbouring patches, a norm and a projection.

Every picture is one square view. Its tokens see each other in both directions, in all of the language model's layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.part_factory import PartFactory
from engine_core.media import Picture, PictureShape, VisionShape
from engine_core.models.model_config import positive
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.vision.parts import StoredMatrix
from engine_core.vision.pixels import Normalization, check_single_view, gray_picture, patches_of
from engine_core.vision.pooling import mean_of_squares
from engine_core.vision.siglip import SiglipShape, SiglipTower

_TOWER = "vision_tower.vision_model"
_PROJECTOR = "multi_modal_projector"
_MOST_CROPS = 256
"""Of a picture, with pan and scan."""
_NAME = re.compile(
    rf"^(?:model\.)?(?:vision_tower\.(?:vision_model\.)?(?P<tower>(?:embeddings|encoder|post_layernorm)\.\S+)"
    rf"|{_PROJECTOR}\.(?P<projector>\S+))$"
)


class Gemma3Vision(VisionModel):
    """Of ``Gemma3ForConditionalGeneration``."""

    model_type = "gemma3"

    @classmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        side = _tokens_per_side(config)
        Normalization(preprocessor)
        parts = 1 + _MOST_CROPS if preprocessor.get("do_pan_and_scan") else 1
        return VisionShape(max_tokens=side * side, parts=parts, attends_both_ways=True)

    @classmethod
    def renamed(cls, name: str) -> str | None:
        if (found := _NAME.match(name)) is None:
            return None
        return f"{_TOWER}.{found['tower']}" if found["tower"] else f"{_PROJECTOR}.{found['projector']}"

    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        self.shape = shape
        tower = _tower(config)
        width, text = tower.hidden_size, positive(config.get_text_config(), "hidden_size")
        self._tower = SiglipTower(tower, _TOWER, parts)
        self._norm = parts.rms_norm(f"{_PROJECTOR}.mm_soft_emb_norm", width, tower.norm_eps, offset=1.0)
        self._projection = StoredMatrix.transposed(f"{_PROJECTOR}.mm_input_projection_weight", width, text, parts)
        self._normalization = Normalization(preprocessor)
        self._pooled = tower.side // _tokens_per_side(config)
        self._dtype, self._device = parts.dtype, parts.device

    def encode(self, picture: Picture) -> Encoded:
        self.check(picture)
        tower = self._tower.shape
        patches = patches_of(self._normalization(picture.views[0]), tower.patch_size)
        hidden = self._tower(patches.to(self._device, self._dtype))
        return Encoded(self._projection(self._norm(mean_of_squares(hidden, tower.side, self._pooled))))

    def check(self, picture: Picture) -> None:
        side = self._tower.shape.image_size
        check_single_view(picture, side, side, PictureShape(self.shape.max_tokens))

    def example(self, num_tokens: int) -> Picture:
        side = self._tower.shape.image_size
        return gray_picture(PictureShape(self.shape.max_tokens), side, side)


def _tower(config: PretrainedConfig) -> SiglipShape:
    """Raises ``CheckpointError``, ``UnsupportedModelError``."""
    vision = config.vision_config
    if vision.model_type != "siglip_vision_model":
        problem = f"vision_config: model_type={vision.model_type!r} is not supported: expected 'siglip_vision_model'"
        raise UnsupportedModelError(problem)
    return SiglipShape.read(vision)


def _tokens_per_side(config: PretrainedConfig) -> int:
    """Raises ``CheckpointError``, ``UnsupportedModelError``."""
    tower, count = _tower(config), positive(config, "mm_tokens_per_image")
    side = math.isqrt(count)
    if side * side != count or tower.side % side:
        raise CheckpointError(
            f"mm_tokens_per_image={count} is not usable: expected a square that divides the {tower.side} x "
            f"{tower.side} patches of vision_config"
        )
    return side
