"""DeepSeek's layers before latent attention: multi-head attention, and DeepSeek V2's experts.

They are the text model of DeepSeek-OCR, whose configuration is that of DeepSeek V2 with ``use_mla`` false.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v2 import DEEPSEEK_V2_ONLY, read_mixture
from engine_core.models.deepseek_v3 import check_only
from engine_core.models.glm4_moe import Glm4MoeLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, positive


class DeepseekOCRTextForCausalLM(CausalLM):
    """The configuration of DeepSeek V2, whose sizes of latents mean nothing here."""

    model_type = "deepseek_v2"
    layer_class = Glm4MoeLayer

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, {**DEEPSEEK_V2_ONLY, "use_mla": False})

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        heads = positive(config, "num_attention_heads")
        fields = common_fields(config, head_dim=positive(config, "hidden_size") // heads)
        biased = bool(config.attention_bias)
        return ArchitectureConfig(**fields, qkv_bias=biased, o_bias=biased, mixture=read_mixture(config, fields))
