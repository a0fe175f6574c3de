"""Which model class runs which architecture. A new family is one new file and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine_core.errors import UnsupportedModelError
from engine_core.models.bert import BertModel
from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_ocr import DeepseekOCRTextForCausalLM
from engine_core.models.deepseek_v2 import DeepseekV2ForCausalLM
from engine_core.models.deepseek_v3 import DeepseekV3ForCausalLM
from engine_core.models.dots1 import Dots1ForCausalLM
from engine_core.models.encoder_model import EncoderModel
from engine_core.models.ernie4_5 import Ernie4_5ForCausalLM
from engine_core.models.ernie4_5_moe import Ernie4_5MoeForCausalLM
from engine_core.models.exaone4 import Exaone4ForCausalLM
from engine_core.models.exaone_moe import ExaoneMoeForCausalLM
from engine_core.models.flex_olmo import FlexOlmoForCausalLM
from engine_core.models.gemma import GemmaForCausalLM
from engine_core.models.gemma2 import Gemma2ForCausalLM
from engine_core.models.gemma3 import Gemma3Encoder, Gemma3ForCausalLM
from engine_core.models.gemma3n import Gemma3nForCausalLM
from engine_core.models.gemma4 import Gemma4ForCausalLM
from engine_core.models.glm import GlmForCausalLM
from engine_core.models.glm4 import Glm4ForCausalLM
from engine_core.models.glm4_moe import Glm4MoeForCausalLM
from engine_core.models.glm4_moe_lite import Glm4MoeLiteForCausalLM
from engine_core.models.gpt_oss import GptOssForCausalLM
from engine_core.models.granite import GraniteForCausalLM
from engine_core.models.granitemoe import GraniteMoeForCausalLM, GraniteMoeSharedForCausalLM
from engine_core.models.granitemoehybrid import GraniteMoeHybridForCausalLM
from engine_core.models.hy_v3 import HYV3ForCausalLM
from engine_core.models.internlm3 import InternLM3ForCausalLM
from engine_core.models.iquestcoder import IQuestCoderForCausalLM
from engine_core.models.kinds import is_known, kind_of, not_supported
from engine_core.models.language_model import LanguageModel
from engine_core.models.layered_model import LayeredModel
from engine_core.models.lfm2 import Lfm2ForCausalLM
from engine_core.models.lfm2_moe import Lfm2MoeForCausalLM
from engine_core.models.lfm3 import Lfm3ForCausalLM
from engine_core.models.llama import LlamaForCausalLM
from engine_core.models.llama4 import Llama4ForCausalLM
from engine_core.models.mamba2 import Mamba2ForCausalLM
from engine_core.models.mellum import MellumForCausalLM
from engine_core.models.minimax_m2 import MiniMaxM2ForCausalLM
from engine_core.models.ministral import MinistralForCausalLM
from engine_core.models.ministral3 import Ministral3ForCausalLM
from engine_core.models.mistral import MistralForCausalLM
from engine_core.models.mixtral import MixtralForCausalLM
from engine_core.models.modernbert import ModernBertModel
from engine_core.models.nemotron_h import NemotronHForCausalLM
from engine_core.models.nomic_bert import NomicBertModel
from engine_core.models.olmo2 import Olmo2ForCausalLM
from engine_core.models.olmo3 import Olmo3ForCausalLM
from engine_core.models.olmoe import OlmoeForCausalLM
from engine_core.models.opt import OPTForCausalLM
from engine_core.models.phi3 import Phi3ForCausalLM
from engine_core.models.qwen2 import Qwen2ForCausalLM
from engine_core.models.qwen2_moe import Qwen2MoeForCausalLM
from engine_core.models.qwen3 import Qwen3ForCausalLM
from engine_core.models.qwen3_5 import Qwen3_5ForCausalLM
from engine_core.models.qwen3_5_moe import Qwen3_5MoeForCausalLM
from engine_core.models.qwen3_moe import Qwen3MoeForCausalLM
from engine_core.models.qwen3_next import Qwen3NextForCausalLM
from engine_core.models.roberta import CamembertModel, RobertaModel, XLMRobertaModel
from engine_core.models.seed_oss import SeedOssForCausalLM
from engine_core.models.smollm3 import SmolLM3ForCausalLM
from engine_core.models.solar_open import SolarOpenForCausalLM

ARCHITECTURES: dict[str, type[CausalLM]] = {
    "DeepseekOCRTextForCausalLM": DeepseekOCRTextForCausalLM,
    "DeepseekV2ForCausalLM": DeepseekV2ForCausalLM,
    "DeepseekV3ForCausalLM": DeepseekV3ForCausalLM,
    "Dots1ForCausalLM": Dots1ForCausalLM,
    "Ernie4_5ForCausalLM": Ernie4_5ForCausalLM,
    "Ernie4_5_MoeForCausalLM": Ernie4_5MoeForCausalLM,
    "Exaone4ForCausalLM": Exaone4ForCausalLM,
    "ExaoneMoeForCausalLM": ExaoneMoeForCausalLM,
    "FlexOlmoForCausalLM": FlexOlmoForCausalLM,
    "Gemma2ForCausalLM": Gemma2ForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "Gemma3nForCausalLM": Gemma3nForCausalLM,
    "Gemma4ForCausalLM": Gemma4ForCausalLM,
    "GemmaForCausalLM": GemmaForCausalLM,
    "Glm4ForCausalLM": Glm4ForCausalLM,
    "Glm4MoeForCausalLM": Glm4MoeForCausalLM,
    "Glm4MoeLiteForCausalLM": Glm4MoeLiteForCausalLM,
    "GlmForCausalLM": GlmForCausalLM,
    "GptOssForCausalLM": GptOssForCausalLM,
    "GraniteForCausalLM": GraniteForCausalLM,
    "Llama4ForCausalLM": Llama4ForCausalLM,
    "GraniteMoeForCausalLM": GraniteMoeForCausalLM,
    "GraniteMoeHybridForCausalLM": GraniteMoeHybridForCausalLM,
    "GraniteMoeSharedForCausalLM": GraniteMoeSharedForCausalLM,
    "HYV3ForCausalLM": HYV3ForCausalLM,
    "InternLM3ForCausalLM": InternLM3ForCausalLM,
    "IQuestCoderForCausalLM": IQuestCoderForCausalLM,
    "Lfm2ForCausalLM": Lfm2ForCausalLM,
    "Lfm2MoeForCausalLM": Lfm2MoeForCausalLM,
    "Lfm3ForCausalLM": Lfm3ForCausalLM,
    "LlamaForCausalLM": LlamaForCausalLM,
    "Mamba2ForCausalLM": Mamba2ForCausalLM,
    "MellumForCausalLM": MellumForCausalLM,
    "MiniMaxM2ForCausalLM": MiniMaxM2ForCausalLM,
    "Ministral3ForCausalLM": Ministral3ForCausalLM,
    "MinistralForCausalLM": MinistralForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "NemotronHForCausalLM": NemotronHForCausalLM,
    "OPTForCausalLM": OPTForCausalLM,
    "Olmo2ForCausalLM": Olmo2ForCausalLM,
    "Olmo3ForCausalLM": Olmo3ForCausalLM,
    "OlmoeForCausalLM": OlmoeForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen2MoeForCausalLM": Qwen2MoeForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3NextForCausalLM": Qwen3NextForCausalLM,
    "Qwen3_5ForCausalLM": Qwen3_5ForCausalLM,
    "Qwen3_5MoeForCausalLM": Qwen3_5MoeForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
    "SeedOssForCausalLM": SeedOssForCausalLM,
    "SmolLM3ForCausalLM": SmolLM3ForCausalLM,
    "SolarOpenForCausalLM": SolarOpenForCausalLM,
}
ENCODERS: dict[str, type[EncoderModel]] = {
    "BertForMaskedLM": BertModel,
    "BertForPreTraining": BertModel,
    "BertForSequenceClassification": BertModel,
    "BertForTokenClassification": BertModel,
    "BertModel": BertModel,
    "CamembertForMaskedLM": CamembertModel,
    "CamembertForSequenceClassification": CamembertModel,
    "CamembertForTokenClassification": CamembertModel,
    "CamembertModel": CamembertModel,
    "Gemma3TextModel": Gemma3Encoder,
    "ModernBertForMaskedLM": ModernBertModel,
    "ModernBertForSequenceClassification": ModernBertModel,
    "ModernBertForTokenClassification": ModernBertModel,
    "ModernBertModel": ModernBertModel,
    "NomicBertForMaskedLM": NomicBertModel,
    "NomicBertForSequenceClassification": NomicBertModel,
    "NomicBertForTokenClassification": NomicBertModel,
    "NomicBertModel": NomicBertModel,
    "RobertaForMaskedLM": RobertaModel,
    "RobertaForSequenceClassification": RobertaModel,
    "RobertaForTokenClassification": RobertaModel,
    "RobertaModel": RobertaModel,
    "XLMRobertaForMaskedLM": XLMRobertaModel,
    "XLMRobertaForSequenceClassification": XLMRobertaModel,
    "XLMRobertaForTokenClassification": XLMRobertaModel,
    "XLMRobertaModel": XLMRobertaModel,
}
"""Models whose tokens see those after them, by the class that a checkpoint was saved with."""
_SPELLINGS = {
    "Ernie4_5_ForCausalLM": "Ernie4_5ForCausalLM",
    "ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM",
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
}
"""Names in published checkpoints, with those of transformers' classes."""
_OTHER_HEADS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForProcessRewardModel",
    "ForRewardModel",
    "Model",
)
"""Ends of the names of classes whose layers are those of …ForCausalLM."""
_LLAMAS = (InternLM3ForCausalLM, IQuestCoderForCausalLM)
"""Families whose checkpoints transformers saves as Llama's, with a ``model_type`` of their own."""

RINGLINE, TRANSFORMERS = "ringline", "transformers"
"""Values of ``ModelChoice.impl``: whose modules compute a model."""
_UNKNOWN = f"transformers {transformers.__version__} does not know it"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What runs an architecture, and why."""

    architecture: str
    model: type[LanguageModel]
    impl: str
    """``RINGLINE`` or ``TRANSFORMERS``."""
    model_types: tuple[str, ...]
    """Allowed values of ``model_type`` in config.json."""
    reason: str
    """For people."""


def canonical_architecture(architecture: str, model_type: object) -> str:
    """``architecture`` as it is spelled here; that of ``model_type`` if transformers has no class of its own for it."""
    if architecture == "LlamaForCausalLM":
        return next((each.__name__ for each in _LLAMAS if each.model_type == model_type), architecture)
    return _SPELLINGS.get(architecture, architecture)


def is_encoder(architecture: str, fields: Mapping[str, Any]) -> bool:
    """Whether a class of that name, with ``fields`` from config.json, is an encoder that runs."""
    from engine_core.models.fallback.rules import encoder_class

    own = _own_model(architecture, fields)
    return encoder_class(architecture) is not None if own is None else issubclass(own, EncoderModel)


def decoder_of(architecture: str, model_type: object) -> str:
    """The class that generates with the layers of ``architecture``, which has another head, or none."""
    for end in _OTHER_HEADS:
        if architecture.endswith(end):
            named = canonical_architecture(f"{architecture.removesuffix(end)}ForCausalLM", model_type)
            return named if named in ARCHITECTURES else _class_of(model_type) or architecture
    return architecture


def choose_model(architecture: str, fields: Mapping[str, Any], model_impl: str) -> ModelChoice:
    """Choose what runs an architecture in config.json, with ``model_impl`` from ``ModelConfig``.

    ``fields`` are config.json's. Raises ``UnsupportedModelError`` with the reason if they show that nothing runs it;
    a later trial decides whether the fallback can.
    """
    own = _own_model(architecture, fields)
    if own is not None and model_impl != TRANSFORMERS:
        return ModelChoice(architecture, own, RINGLINE, (own.model_type,), "by Ringline's own model")
    if (encoder := _encoder_of_transformers(architecture, model_impl, has_own=own is not None)) is not None:
        return encoder
    from engine_core.models.fallback.rules import MIXTURES, TESTED, model_types

    types = model_types(architecture)
    meant = _class_of(fields.get("model_type"))
    if meant in _served() and not is_known(architecture) and not fields.get("auto_map"):
        raise not_supported(architecture, f"{_UNKNOWN}; it may be misspelt, as model_type is that of {meant}")
    with_experts = architecture in MIXTURES or (not types and bool(fields.get("auto_map")))
    if (kind := kind_of(architecture, fields, with_experts=with_experts)) is not None:
        raise not_supported(architecture, f"it is {kind}{_way_out(architecture, fields)}")
    if not types:
        raise not_supported(architecture, _why_unknown(fields))
    if model_impl == RINGLINE:
        runs = "runs" if architecture in TESTED else "may run"
        raise not_supported(
            architecture, f"Ringline has no model of its own for it; --model-impl auto {runs} it through transformers"
        )
    from engine_core.models.fallback.model import TransformersForCausalLM  # loads much of transformers

    because = "as --model-impl says" if own is not None else "since Ringline has no model of its own for it"
    return ModelChoice(
        architecture, TransformersForCausalLM, TRANSFORMERS, types, f"through transformers' module, {because}"
    )


def _encoder_of_transformers(architecture: str, model_impl: str, *, has_own: bool) -> ModelChoice | None:
    """What runs an encoder through transformers; None: it is none that may. Raises ``UnsupportedModelError``."""
    from engine_core.models.fallback.rules import encoder_class, encoder_types

    if (base := encoder_class(architecture)) is None:
        if has_own and architecture in ENCODERS:
            raise not_supported(architecture, "--model-impl transformers does not run it; auto does")
        return None
    if model_impl == RINGLINE:
        way = "--model-impl auto runs it through transformers"
        raise not_supported(architecture, f"Ringline has no model of its own for it; {way}")
    from engine_core.models.fallback.encoder import TransformersEncoder  # loads much of transformers

    because = "through transformers' module, since Ringline has no model of its own for it"
    return ModelChoice(architecture, TransformersEncoder, TRANSFORMERS, encoder_types(base), because)


def _own_model(architecture: str, fields: Mapping[str, Any]) -> type[LayeredModel] | None:
    """Ringline's model for it, if there is one."""
    encoder = ENCODERS.get(architecture)
    if encoder is Gemma3Encoder and not fields.get("use_bidirectional_attention"):
        encoder = None
    return encoder or ARCHITECTURES.get(architecture)


def _way_out(architecture: str, fields: Mapping[str, Any]) -> str:
    """The end of an error: what runs instead, if anything."""
    if architecture in ARCHITECTURES:
        return ", as --model-impl auto chooses"
    if (headless := architecture.removesuffix("Model")) != architecture:
        named = f"{headless}ForCausalLM"
        return f"; a checkpoint of {named} runs" if named in _served() else ""
    text = fields.get("text_config")
    text_model = _class_of(text.get("model_type")) if isinstance(text, dict) else None
    return f"; a checkpoint of its text model alone ({text_model}) runs" if text_model in _served() else ""


def _served() -> set[str]:
    """The tested architectures."""
    from engine_core.models.fallback.rules import TESTED

    return {*ARCHITECTURES, *TESTED}


def _class_of(model_type: object) -> str | None:
    """The causal language model of transformers for ``model_type``."""
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type) if isinstance(model_type, str) else None


def _why_unknown(fields: Mapping[str, Any]) -> str:
    """Why a class is unknown."""
    if fields.get("auto_map"):
        return "it needs code from its checkpoint (auto_map in config.json), which is never executed"
    return f"{_UNKNOWN}; it may be misspelt, or newer"


def fallback_may_run(choice: ModelChoice, config: PretrainedConfig) -> bool:
    """Whether ``config``, which Ringline's model in ``choice`` refuses, is a decoder's that transformers may run;
    a trial of its module may still refuse it.
    """
    from engine_core.models.fallback.rules import architecture_of, require_dense_decoder

    if choice.impl != RINGLINE or issubclass(choice.model, EncoderModel):
        return False
    try:
        require_dense_decoder(config, architecture_of(config))
    except UnsupportedModelError:
        return False
    return True
