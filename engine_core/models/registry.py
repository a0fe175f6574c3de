"""Which model class runs which architecture. A new family is one new file and a line here."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.models.base import CausalLM
from engine_core.models.deepseek_v2 import DeepseekV2ForCausalLM
from engine_core.models.deepseek_v3 import DeepseekV3ForCausalLM
from engine_core.models.gemma2 import Gemma2ForCausalLM
from engine_core.models.gemma3 import Gemma3ForCausalLM
from engine_core.models.gemma4 import Gemma4ForCausalLM
from engine_core.models.glm import GlmForCausalLM
from engine_core.models.glm4 import Glm4ForCausalLM
from engine_core.models.glm4_moe import Glm4MoeForCausalLM
from engine_core.models.glm4_moe_lite import Glm4MoeLiteForCausalLM
from engine_core.models.gpt_oss import GptOssForCausalLM
from engine_core.models.granite import GraniteForCausalLM
from engine_core.models.interface import LanguageModel
from engine_core.models.llama import LlamaForCausalLM
from engine_core.models.ministral import MinistralForCausalLM
from engine_core.models.ministral3 import Ministral3ForCausalLM
from engine_core.models.mistral import MistralForCausalLM
from engine_core.models.mixtral import MixtralForCausalLM
from engine_core.models.olmo2 import Olmo2ForCausalLM
from engine_core.models.olmo3 import Olmo3ForCausalLM
from engine_core.models.opt import OPTForCausalLM
from engine_core.models.phi3 import Phi3ForCausalLM
from engine_core.models.qwen2 import Qwen2ForCausalLM
from engine_core.models.qwen2_moe import Qwen2MoeForCausalLM
from engine_core.models.qwen3 import Qwen3ForCausalLM
from engine_core.models.qwen3_moe import Qwen3MoeForCausalLM
from engine_core.models.smollm3 import SmolLM3ForCausalLM

ARCHITECTURES: dict[str, type[CausalLM]] = {
    "DeepseekV2ForCausalLM": DeepseekV2ForCausalLM,
    "DeepseekV3ForCausalLM": DeepseekV3ForCausalLM,
    "Gemma2ForCausalLM": Gemma2ForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "Gemma4ForCausalLM": Gemma4ForCausalLM,
    "Glm4ForCausalLM": Glm4ForCausalLM,
    "Glm4MoeForCausalLM": Glm4MoeForCausalLM,
    "Glm4MoeLiteForCausalLM": Glm4MoeLiteForCausalLM,
    "GlmForCausalLM": GlmForCausalLM,
    "GptOssForCausalLM": GptOssForCausalLM,
    "GraniteForCausalLM": GraniteForCausalLM,
    "LlamaForCausalLM": LlamaForCausalLM,
    "Ministral3ForCausalLM": Ministral3ForCausalLM,
    "MinistralForCausalLM": MinistralForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "OPTForCausalLM": OPTForCausalLM,
    "Olmo2ForCausalLM": Olmo2ForCausalLM,
    "Olmo3ForCausalLM": Olmo3ForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen2MoeForCausalLM": Qwen2MoeForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
    "SmolLM3ForCausalLM": SmolLM3ForCausalLM,
}


RINGLINE, TRANSFORMERS = "ringline", "transformers"
"""Whose modules compute a model."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What runs an architecture, and why."""

    architecture: str
    model: type[LanguageModel]
    impl: str
    """``RINGLINE`` or ``TRANSFORMERS``."""
    model_types: tuple[str, ...]
    """What config.json may call the family."""
    reason: str
    """For a person."""


def choose_model(architecture: str, model_impl: str) -> ModelChoice:
    """What runs an architecture, as config.json names it, where ``model_impl`` is that of ``ModelConfig``.

    Raises ``UnsupportedModelError`` naming what is known. Whether the fallback can run what it is chosen for, only the
    configuration tells.
    """
    own = ARCHITECTURES.get(architecture)
    if own is not None and model_impl != TRANSFORMERS:
        return ModelChoice(architecture, own, RINGLINE, (own.model_type,), "by Ringline's own model")
    if model_impl == RINGLINE:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; known are {', '.join(sorted(ARCHITECTURES))}, and more "
            "with --model-impl auto"
        )
    from engine_core.models.fallback.rules import model_types

    if not (types := model_types(architecture)):
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; {known_architectures()}")
    from engine_core.models.fallback.model import TransformersForCausalLM  # loads much of transformers

    because = "as --model-impl says" if own is not None else "since Ringline has no model of its own for it"
    return ModelChoice(
        architecture, TransformersForCausalLM, TRANSFORMERS, types, f"through transformers' module, {because}"
    )


def fallback_may_run(config: PretrainedConfig) -> bool:
    """Whether ``config`` describes a dense decoder that transformers has; a trial of its module may refuse it yet."""
    from engine_core.models.fallback.rules import architecture_of, require_dense_decoder

    try:
        require_dense_decoder(config, architecture_of(config))
    except UnsupportedModelError:
        return False
    return True


def known_architectures() -> str:
    """Those that can be run, for a person."""
    from engine_core.models.fallback.rules import TESTED

    fallback = [name for name in TESTED if name not in ARCHITECTURES]
    return (
        f"known are {', '.join(sorted(ARCHITECTURES))}; and, through transformers, dense decoders such as "
        f"{', '.join(fallback)}"
    )
