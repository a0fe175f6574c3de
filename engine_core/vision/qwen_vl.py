"""Pictures of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: one view of any size, a token for each square of merged
patches.

Symbols in shapes: P patches of a picture, N tokens (P divided by the patches merged into one), H hidden size of the
language model, D features that its first layers take.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.layers.part_factory import PartFactory
from engine_core.media import CHANNELS, Picture, PictureShape, VisionShape
from engine_core.models.fallback.modules import widened
from engine_core.models.model_config import MOST_LAYERS
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.vision.pixels import FIELD, Normalization, check_single_view, gray_picture
from engine_core.vision.transformers_tower import build_module, configured, put_in_parts

_PREFIX = "visual."
_STORED = re.compile(r"^(?:model\.)?visual\.")
_CLIP_MEAN = 0.48145466, 0.4578275, 0.40821073
_CLIP_STD = 0.26862954, 0.26130258, 0.27577711
"""Where preprocessor_config.json has no numbers, as in transformers' processor; like the number of pixels."""
_MAX_PIXELS = 28 * 28 * 1280
_MOST = 2**24
"""Of any size in a configuration."""
_SIDES = "patch_size", "spatial_merge_size", "temporal_patch_size"
_ROTARY = "rotary_pos_emb"


class QwenVL(VisionModel):
    """The tower of one of these families, with the projector that merges patches."""

    tower: ClassVar[str]
    """Transformers' class of it."""
    width: ClassVar[str] = "out_hidden_size"
    """The field of vision_config that must be the language model's hidden size."""
    numerics = (f"a tower of transformers {transformers.__version__}",)

    @classmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        vision, text = config.vision_config, config.get_text_config(decoder=True)
        _check_sizes(vision, cls.width)
        if (width := getattr(vision, cls.width)) != text.hidden_size:
            raise CheckpointError(
                f"vision_config: {cls.width} is {width}, but hidden_size in text_config {text.hidden_size}"
            )
        for name, field in (("patch_size", "patch_size"), ("merge_size", "spatial_merge_size"), (_SIDES[2],) * 2):
            if (stated := preprocessor.get(name)) not in (None, own := getattr(vision, field)):
                raise CheckpointError(f"preprocessor_config.json: {name} is {stated!r}, but {field} is {own}")
        rope = text.rope_parameters
        return VisionShape(
            max(1, _max_pixels(preprocessor) // _side(vision) ** 2),
            shrinks=True,
            num_deepstack=len(_deepstack(vision, text)),
            mrope_section=_sections(rope.get("mrope_section")),
            mrope_interleaved=bool(rope.get("mrope_interleaved", False)),
        )

    @classmethod
    def renamed(cls, name: str) -> str | None:
        renamed, found = _STORED.subn(_PREFIX, name, count=1)
        return renamed if found else None

    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        self.shape = shape
        self._vision = vision = configured(config.vision_config)
        self._parts = parts
        self._normalize = Normalization(preprocessor, _CLIP_MEAN, _CLIP_STD)
        self._tower = build_module(lambda: self._made(vision), parts)
        self._tower.set_submodule(_ROTARY, AxialAngles(self._tower.get_submodule(_ROTARY)))
        put_in_parts(self._tower, parts, _PREFIX.__add__)

    @classmethod
    def _made(cls, vision: PretrainedConfig) -> nn.Module:
        """The tower as transformers makes it. Its modules take seconds to import, so this does it when one is made."""
        module = import_module(f"transformers.models.{cls.model_type}.modeling_{cls.model_type}")
        tower: nn.Module = getattr(module, cls.tower)(vision)
        return tower

    def check(self, picture: Picture) -> None:
        side, rows, columns = _side(self._vision), picture.shape.token_rows, picture.shape.token_columns
        if rows < 1 or columns < 1 or rows * columns > self.shape.max_tokens:
            problem = f"a picture has {rows} rows and {columns} columns of tokens"
            raise InvalidRequestError(FIELD, f"{problem}: expected 1 to {self.shape.max_tokens} tokens together")
        check_single_view(picture, rows * side, columns * side, PictureShape(rows * columns, 0, 0, rows, columns))

    @torch.no_grad()
    def encode(self, picture: Picture) -> Encoded:
        self.check(picture)
        merge, device = self._vision.spatial_merge_size, self._parts.device
        shape = picture.shape
        grid = torch.tensor([[1, shape.token_rows * merge, shape.token_columns * merge]], device=device)
        encoded = self._tower(self.patches(picture).to(device), grid_thw=grid)
        features = getattr(encoded, "deepstack_features", None) if self.shape.num_deepstack else None
        deepstack = None if features is None else torch.stack([self._padded(each) for each in features])
        return Encoded(self._padded(encoded.pooler_output), deepstack)

    def patches(self, picture: Picture) -> torch.Tensor:
        """[P, numbers of a patch] of the model's type, on the host: channels, then times, rows and columns of pixels.

        The patches of a token follow each other.
        """
        view, vision = picture.views[0], self._vision
        side, merge, times = (getattr(vision, name) for name in _SIDES)
        rows, columns = view.height // side // merge, view.width // side // merge
        image = self._normalize(view).to(self._parts.dtype)
        squares = image.view(rows, merge, side, columns, merge, side, CHANNELS).permute(0, 3, 1, 4, 6, 2, 5)
        still = squares.reshape(-1, CHANNELS, 1, side * side).expand(-1, -1, times, -1)  # the same at all times
        return still.reshape(len(still), -1)

    def example(self, num_tokens: int) -> Picture:
        side, wanted = _side(self._vision), max(1, min(num_tokens, self.shape.max_tokens))
        rows = math.isqrt(wanted)
        columns = wanted // rows
        return gray_picture(PictureShape(rows * columns, 0, 0, rows, columns), rows * side, columns * side)

    def _padded(self, embeddings: torch.Tensor) -> torch.Tensor:
        """[N, H] with the backend's padding."""
        return widened(embeddings, self._parts.backend.padded(embeddings.shape[-1]))


class AxialAngles(nn.Module):
    """Replaces the module that computes the angles of patches from their rows and columns.

    numpy has one thread: with several, torch computes the ends of their shares in another loop.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._frequencies: Any = module.inv_freq

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [P, head size], for ``places`` [P, 2]."""
        angles = places.cpu()[..., None].float() * self._frequencies.cpu()
        of_pairs = np.tile(angles.flatten(1).numpy().astype(np.float64), 2)
        cosines, sines = (torch.from_numpy(each(of_pairs).astype(np.float32)) for each in (np.cos, np.sin))
        return cosines.to(x.device), sines.to(x.device)


def _side(vision: PretrainedConfig) -> int:
    """Pixels along a token's side."""
    side: int = vision.patch_size * vision.spatial_merge_size
    return side


def _check_sizes(vision: PretrainedConfig, width: str) -> None:
    """Raise ``CheckpointError`` for sizes of which no tower can be made."""
    sizes = {name for name in ("embed_dim", "intermediate_size", "num_position_embeddings") if hasattr(vision, name)}
    for name in ("depth", "hidden_size", "num_heads", "in_channels", width, *_SIDES, *sorted(sizes)):
        value, most = getattr(vision, name), MOST_LAYERS if name == "depth" else _MOST
        if type(value) is not int or not 1 <= value <= most:
            raise CheckpointError(f"vision_config: {name}={value!r} is not usable: expected 1 to {most}")
    inner = getattr(vision, "embed_dim", vision.hidden_size)
    if inner % (4 * vision.num_heads):
        raise CheckpointError(
            f"vision_config: {inner} features are not divisible into {vision.num_heads} heads whose size is a multiple "
            "of 4"
        )
    window, least = getattr(vision, "window_size", None), _side(vision)
    if hasattr(vision, "window_size") and (type(window) is not int or not least <= window <= _MOST):
        raise CheckpointError(f"vision_config: window_size={window!r} is not usable: expected {least} to {_MOST}")
    if vision.in_channels != CHANNELS:
        raise CheckpointError(f"vision_config: in_channels={vision.in_channels}: expected {CHANNELS}")


def _max_pixels(preprocessor: Mapping[str, Any]) -> int:
    """Of a picture. Raises ``CheckpointError``."""
    size = preprocessor.get("size")
    most = (size.get("longest_edge") if isinstance(size, dict) else None) or _MAX_PIXELS
    if preprocessor.get("max_pixels") is not None:
        most = preprocessor["max_pixels"]
    if type(most) is not int or most < 1:
        raise CheckpointError(f"preprocessor_config.json: max_pixels (size.longest_edge) {most!r} is not usable")
    return most


def _deepstack(vision: PretrainedConfig, text: PretrainedConfig) -> tuple[int, ...]:
    """The tower's layers whose features go to the language model's first layers. Raises ``CheckpointError``."""
    indices = tuple(getattr(vision, "deepstack_visual_indexes", None) or ())
    usable = all(type(index) is int and 0 <= index < vision.depth for index in indices)
    if not usable or len(set(indices)) < len(indices) or len(indices) > text.num_hidden_layers:
        raise CheckpointError(
            f"vision_config: deepstack_visual_indexes={indices} is not usable: expected different layers below "
            f"{vision.depth}, at most {text.num_hidden_layers}"
        )
    return indices


def _sections(sections: Any) -> tuple[int, ...]:
    """Pairs of a head by time, height and width. Raises ``CheckpointError``."""
    if not isinstance(sections, list | tuple) or len(sections) != 3 or not all(type(each) is int for each in sections):
        raise CheckpointError(
            f"rope_parameters: mrope_section={sections!r} is not usable: expected three whole numbers"
        )
    return tuple(sections)


class Qwen2VL(QwenVL):
    """Layer norms; all patches attend to each other."""

    model_type = "qwen2_vl"
    tower = "Qwen2VisionTransformerPretrainedModel"
    width = "hidden_size"


class Qwen2_5VL(QwenVL):
    """RMS norms; most layers attend within windows."""

    model_type = "qwen2_5_vl"
    tower = "Qwen2_5_VisionTransformerPretrainedModel"


class Qwen3VL(QwenVL):
    """Some layers' features go to the language model's first layers."""

    model_type = "qwen3_vl"
    tower = "Qwen3VLVisionModel"


class Qwen3VLMoe(QwenVL):
    """As Qwen3-VL."""

    model_type = "qwen3_vl_moe"
    tower = "Qwen3VLMoeVisionModel"


class Qwen3_5(QwenVL):
    """As Qwen3-VL, but the language model's layers get no features."""

    model_type = "qwen3_5"
    tower = "Qwen3_5VisionModel"


class Qwen3_5Moe(QwenVL):
    """As Qwen3.5."""

    model_type = "qwen3_5_moe"
    tower = "Qwen3_5MoeVisionModel"
