"""DeepSeek-OCR as transformers computes it: by Unlimited-OCR's class, which has the same modules and names, with
attention to all tokens in every layer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeepseekOcr2Config,
    DeepseekOcr2ForConditionalGeneration,
    PreTrainedModel,
    UnlimitedOcrConfig,
    UnlimitedOcrForConditionalGeneration,
)

from engine_core.media import Picture
from tests.engine_core.models.tiny_models import EAGER, SIZES

EXPERTS_SIZES: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}


def reference(directory: Path) -> PreTrainedModel:
    """The checkpoint in ``directory``, whose names of tensors transformers' own mapping reads."""
    raw = json.loads((directory / "config.json").read_text())
    model: PreTrainedModel = UnlimitedOcrForConditionalGeneration.from_pretrained(
        directory, config=_configuration(raw), dtype=torch.float32, **EAGER
    )
    return model.eval()


def reference2(directory: Path, tokens: int) -> PreTrainedModel:
    """Write a random checkpoint of DeepSeek-OCR 2 with a vocabulary of ``tokens``, as transformers saves it."""
    encoder = {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 80}
    sam = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "global_attn_indexes": [],  # DeepSeek-OCR's tests have one
        "downsample_channels": [40, 48],
    }
    text = SIZES | EXPERTS_SIZES | {"vocab_size": tokens, "num_key_value_heads": 4, "max_position_embeddings": 2048}
    config = DeepseekOcr2Config(
        text_config=text, vision_config={"sam_config": sam, "encoder_config": encoder | {"num_hidden_layers": 2}}
    )
    model: PreTrainedModel = DeepseekOcr2ForConditionalGeneration._from_config(config, **EAGER).float().eval()
    randomize(model)
    model.save_pretrained(directory)
    return model


def randomize(model: PreTrainedModel) -> None:
    """Numbers by which those computed neither grow nor vanish; the weights of norms are around one."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_table = parameter.ndim < 2 or any(part in name for part in ("embed", "rel_pos", "query_"))
            fan_in = 16 if is_table else parameter[0].numel() // (len(parameter[0]) if "experts" in name else 1)
            parameter.normal_(0.0, fan_in**-0.5)
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter += 1


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
