"""GLM-4.5 and 4.6: heads that are rotated in part; experts after some dense layers, one of them shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import FeedForward
from engine_core.models.deepseek_v3 import DEEPSEEK_ONLY, deepseek_mixture, deepseek_mlp, is_unused
from engine_core.models.mixtral import MixtralConfig, MixtralForCausalLM
from engine_core.models.mixture import check_only
from engine_core.models.model_config import common_fields


class Glm4MoeForCausalLM(MixtralForCausalLM):
    """Experts as in DeepSeek V3; layers that predict further tokens are skipped."""

    model_type = "glm4_moe"

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, DEEPSEEK_ONLY)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> MixtralConfig:
        fields = common_fields(config, partial_rotary=True)
        mixture = deepseek_mixture(config, fields)
        return MixtralConfig(**fields, qkv_bias=config.attention_bias, qk_norm=config.use_qk_norm, mixture=mixture)

    def make_mlp(self, index: int, prefix: str, layers: PartFactory) -> FeedForward:
        return deepseek_mlp(self.config, self.config.mixture, index, prefix, layers)

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or is_unused(name, self.config.mixture)
