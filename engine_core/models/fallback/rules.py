"""Which of transformers' architectures the fallback may try, judged by names and by the configuration alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine_core.errors import UnsupportedModelError

TESTED = (
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "BioGptForCausalLM",
    "Cohere2ForCausalLM",
    "CohereForCausalLM",
    "Ernie4_5ForCausalLM",
    "Exaone4ForCausalLM",
    "GemmaForCausalLM",
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
    "SeedOssForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
)
"""Those whose tokens are compared with transformers' in tests; others of their kind are likely to run."""

ATTENTION_TYPES = ("full_attention", "sliding_attention")
"""What ``layer_types`` may name."""

_RECURRENT = (
    "block_types",
    "conv_L_cache",
    "conv_kernel",
    "linear_num_key_heads",
    "lru_width",
    "mamba",
    "mlstm",
    "rescale_every",
    "ssm",
    "state_size",
)
"""Parts of the names of fields that only state-space, convolutional and recurrent models have."""

_PARTS = ("audio", "image", "text", "vision", "vq")
"""How the configurations of a multimodal model's parts begin."""

_STATIC_ROPES = ("default", "linear", "llama3", "proportional", "yarn")
"""Rotations whose angles depend on a token's own position alone, not on the longest sequence of the batch."""


def model_types(architecture: str) -> tuple[str, ...]:
    """What config.json may call the family of ``architecture``; empty where transformers has no such decoder."""
    return tuple(kind for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == architecture)


def architecture_of(config: PretrainedConfig) -> str:
    """The causal language model that transformers has for ``config``."""
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]


def require_dense_decoder(config: PretrainedConfig, architecture: str) -> None:
    """Raise ``UnsupportedModelError`` where ``config`` describes something else, or rows that depend on each other."""
    if (kind := _other_kind(config, architecture)) is not None:
        raise UnsupportedModelError(
            f"{architecture} is not run by the fallback through transformers {transformers.__version__}: it is {kind}"
        )
    for rope_type in _rope_types(config):
        if rope_type not in _STATIC_ROPES:
            raise UnsupportedModelError(
                f"{architecture}: rope type {rope_type!r} is not supported by the fallback through transformers: "
                f"there, a token's angles depend on the batch; supported are {', '.join(_STATIC_ROPES)}"
            )


def _other_kind(config: PretrainedConfig, architecture: str) -> str | None:
    """What the model is, unless it may be a dense decoder of text."""
    fields = config.to_dict()
    if getattr(config, "is_encoder_decoder", False):
        return "the decoder of an encoder-decoder"
    if parts := [name for name in fields if name.endswith("_config") and name.startswith(_PARTS)]:
        return f"multimodal ({', '.join(parts)})"
    if getattr(config, "is_decoder", None) is False and "add_cross_attention" in fields:
        return "an encoder (is_decoder=False)"
    experts = next(((name, value) for name, value in fields.items() if "expert" in name and value), None)
    if experts is not None:
        return f"a mixture of experts ({experts[0]}={experts[1]!r})"
    if others := sorted(set(fields.get("layer_types") or ()) - set(ATTENTION_TYPES)):
        return f"a hybrid with layers of type {', '.join(others)}"
    recurrent = next((name for name in fields if any(part in name for part in _RECURRENT)), None)
    if recurrent is not None:
        return f"a state-space, convolutional or recurrent model ({recurrent}={fields[recurrent]!r})"
    return None if architecture.endswith("ForCausalLM") else "no …ForCausalLM, the only classes that are tried"


def _rope_types(config: PretrainedConfig) -> Iterator[str]:
    """The types of all rotations."""
    told: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    for parameters in [told, *(value for value in told.values() if isinstance(value, dict))]:
        if (rope_type := parameters.get("rope_type")) is not None:
            yield str(rope_type)
