"""DeepSeek-OCR as transformers computes it: by Unlimited-OCR's class, which has the same modules and names, with
attention to all tokens in every layer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, UnlimitedOcrConfig, UnlimitedOcrForConditionalGeneration

from engine_core.media import Picture
from tests.engine_core.models.tiny_models import EAGER


def reference(directory: Path) -> PreTrainedModel:
    """The checkpoint in ``directory``, whose names of tensors transformers' own mapping reads."""
    raw = json.loads((directory / "config.json").read_text())
    model: PreTrainedModel = UnlimitedOcrForConditionalGeneration.from_pretrained(
        directory, config=_configuration(raw), dtype=torch.float32, **EAGER
    )
    return model.eval()


def _configuration(raw: dict[str, Any]) -> UnlimitedOcrConfig:
    widths, language = raw["vision_config"]["width"], raw["language_config"]
    sam, clip = widths["sam_vit_b"], widths["clip-l-14-224"]
    text = {
        name: language[name] for name in language if not name.startswith(("qk_", "kv_", "q_lora", "v_head", "auto"))
    }
    return UnlimitedOcrConfig(
        text_config=text | {"layer_types": ["full_attention"] * language["num_hidden_layers"]},
        vision_config={
            "sam_config": {
                "hidden_size": sam["width"],
                "num_hidden_layers": sam["layers"],
                "num_attention_heads": sam["heads"],
                "global_attn_indexes": sam["global_attn_indexes"],
                "downsample_channels": sam["downsample_channels"],
                "mlp_dim": 4 * sam["width"],
                "image_size": raw["vision_config"]["image_size"],
            },
            "encoder_config": {
                "hidden_size": clip["width"],
                "intermediate_size": 4 * clip["width"],
                "num_hidden_layers": clip["layers"],
                "num_attention_heads": clip["heads"],
                "image_size": clip["image_size"],
                "patch_size": clip["patch_size"],
            },
        },
    )


def pixel_values(picture: Picture) -> dict[str, Any]:
    """What transformers' processor would make of a picture."""
    views = [
        (torch.frombuffer(bytearray(view.pixels), dtype=torch.uint8).view(view.height, view.width, 3) / 255 - 0.5) / 0.5
        for view in picture.views
    ]
    whole, *crops = (view.permute(2, 0, 1)[None] for view in views)
    shape = picture.shape
    inputs: dict[str, Any] = {"pixel_values": whole}
    if crops:
        inputs["pixel_values_local"] = torch.cat(crops)
    return inputs | {"num_local_patches": [len(crops)], "patches_grid": [[shape.columns, shape.rows]]}
