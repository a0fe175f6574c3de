"""Engines on the device, and what they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import DeepseekV2Config, DeepseekV3Config

from engine_core.llm import LLM
from engine_core.request import SamplingParams
from tests.engine_core.models.families import configuration
from tests.engine_core.models.families.latent import LATENT
from tests.engine_core.models.tiny_models import make_model, save_model
from tests.gpu.device import ON_CARD, sized

PROMPTS = [list(range(5, 5 + length)) for length in sized((1, 7, 40, 150), (1, 6, 17))]
LENGTH = sized(24, 3)
"""Tokens of an answer."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
MIXED = ("gpt_oss", "deepseek_v2", "deepseek_v3")
"""Families whose second layer is not like the first."""
_SIZES = LATENT | {"qk_rope_head_dim": 16, "first_k_dense_replace": 1}
LATENTS = {
    "deepseek_v2": DeepseekV2Config(**(_SIZES | {"q_lora_rank": None})),
    "deepseek_v3": DeepseekV3Config(**_SIZES, n_group=4, topk_group=2),
}
"""With attention over latents of sizes that GPUs take."""
OPTIONS: dict[str, Any] = {
    "device": "cuda",
    "dtype": "bfloat16",
    "max_num_seqs": sized(16, 4),
    "max_num_batched_tokens": sized(64, 20),
    "max_model_len": sized(256, 32),
    "kv_cache_memory_bytes": sized(64 << 20, 2 << 20),
}


def saved(name: str, folder: Path) -> Path:
    """A tiny checkpoint in a folder of its own; an interpreter has only the first layers."""
    path = folder / name
    if not path.exists():
        config = LATENTS[name] if name in LATENTS else configuration(name)
        if not ON_CARD:
            config.num_hidden_layers = 2 if name in MIXED else 1
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[: config.num_hidden_layers]
        save_model(make_model(config), path)
    return path


def tokens(model: Path, params: SamplingParams | list[SamplingParams] = GREEDY, **options: Any) -> list[list[int]]:
    with LLM(str(model), **(OPTIONS | options)) as llm:
        return [result.choices[0].token_ids for result in llm.generate(PROMPTS, params)]
