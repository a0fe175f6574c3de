"""Which model class runs which architecture. A new family is one new file and a line here."""

from __future__ import annotations

from engine_core.errors import UnsupportedModelError
from engine_core.models.base import CausalLM
from engine_core.models.deepseek_v2 import DeepseekV2ForCausalLM
from engine_core.models.deepseek_v3 import DeepseekV3ForCausalLM
from engine_core.models.gemma2 import Gemma2ForCausalLM
from engine_core.models.gemma3 import Gemma3ForCausalLM
from engine_core.models.glm import GlmForCausalLM
from engine_core.models.glm4 import Glm4ForCausalLM
from engine_core.models.glm4_moe import Glm4MoeForCausalLM
from engine_core.models.glm4_moe_lite import Glm4MoeLiteForCausalLM
from engine_core.models.gpt_oss import GptOssForCausalLM
from engine_core.models.granite import GraniteForCausalLM
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


def model_class(architecture: str) -> type[CausalLM]:
    """The class for an architecture as config.json names it. Raises ``UnsupportedModelError`` naming those known."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; known are {known}")
    return ARCHITECTURES[architecture]
