"""Which transformers architectures the fallback may try, judged by names and configuration alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from engine_core.errors import UnsupportedModelError
from engine_core.models.kinds import kind_of, not_supported

MIXTURES = (
    "AXK1ForCausalLM",
    "AfmoeForCausalLM",
    "Cohere2MoeForCausalLM",
    "FlintForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "Kolibri1ForCausalLM",
    "LagunaForCausalLM",
    "MiMoV2FlashForCausalLM",
    "PhimoeForCausalLM",
)
"""Architectures with experts; the others are refused."""
TESTED = (
    *MIXTURES,
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "BioGptForCausalLM",
    "Cohere2ForCausalLM",
    "CohereForCausalLM",
    "GPTBigCodeForCausalLM",
    "GPTNeoXForCausalLM",
    "GraniteSWAForCausalLM",
    "HeliumForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "MiniCPM3ForCausalLM",
    "NemotronForCausalLM",
    "OlmoForCausalLM",
    "PersimmonForCausalLM",
    "PhiForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
)
"""Architectures whose tokens tests compare with transformers'; similar ones are likely to run."""

ENCODERS = {
    "DistilBertModel": "distilbert",
    "ElectraModel": "electra",
    "ErnieModel": "ernie",
    "EuroBertModel": "model",
}
"""Encoders whose hidden states tests compare with transformers', to the prefix of their tensors below a head; no others
run, as positions and types of tokens are given in many ways."""
_ENCODER_HEADS = ("ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification", "Model")

_STATIC_ROPES = ("default", "dynamic", "linear", "llama3", "proportional", "yarn")
"""Rope types whose angles depend on a token's position alone, not on the longest sequence of the batch: those of
``dynamic`` change beyond ``max_position_embeddings``, which no sequence exceeds.
"""


def model_types(architecture: str) -> tuple[str, ...]:
    """The ``model_type`` values for ``architecture``; empty if transformers has no such decoder."""
    return tuple(kind for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == architecture)


def architecture_of(config: PretrainedConfig) -> str:
    """The causal language model of transformers for ``config``."""
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]


def encoder_class(architecture: str) -> str | None:
    """The class in ``ENCODERS`` whose layers ``architecture`` has; None: it is none of these."""
    for end in _ENCODER_HEADS:
        if architecture.endswith(end) and (own := f"{architecture.removesuffix(end)}Model") in ENCODERS:
            return own
    return None


def encoder_types(architecture: str) -> tuple[str, ...]:
    """The ``model_type`` values for the class ``architecture`` in ``ENCODERS``."""
    return tuple(kind for kind, name in MODEL_MAPPING_NAMES.items() if name == architecture)


def encoder_of(config: PretrainedConfig) -> str:
    """The class of transformers without a head for ``config``."""
    return str(MODEL_MAPPING_NAMES[config.model_type])


def require_dense_decoder(config: PretrainedConfig, architecture: str) -> None:
    """Raise ``UnsupportedModelError`` if ``config`` describes another kind of model, or rows depend on each other."""
    if (kind := kind_of(architecture, config.to_dict(), with_experts=architecture in MIXTURES)) is not None:
        raise not_supported(architecture, f"it is {kind}")
    require_static_ropes(config, architecture)


def require_static_ropes(config: PretrainedConfig, architecture: str) -> None:
    """Raise ``UnsupportedModelError`` if a token's angles depend on other tokens."""
    for rope_type in _rope_types(config):
        if rope_type not in _STATIC_ROPES:
            raise UnsupportedModelError(
                f"{architecture}: rope type {rope_type!r} is not supported through transformers, where a "
                f"token's angles would depend on the batch; supported are {', '.join(_STATIC_ROPES)}"
            )


def _rope_types(config: PretrainedConfig) -> Iterator[str]:
    """All rope types."""
    given: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    for parameters in [given, *(value for value in given.values() if isinstance(value, dict))]:
        if (rope_type := parameters.get("rope_type")) is not None:
            yield str(rope_type)
