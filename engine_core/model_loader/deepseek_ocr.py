"""DeepSeek-OCR's configuration as DeepSeek publishes it, for which transformers has no class (``deepseek_vl_v2``).

The code that such a checkpoint brings is never executed. DeepSeek-VL2, with the same ``model_type``, is another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.model_loader.text_model import TextModel

MODEL_TYPE = "deepseek_vl_v2"
CLASSES = frozenset({"DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM"})
"""Published classes of DeepSeek-OCR and DeepSeek-OCR 2."""
OF_TRANSFORMERS = "DeepseekOcr2ForConditionalGeneration"
"""Transformers' class of DeepSeek-OCR 2, with a configuration of its own; the tensors have the published names."""
_OWN_FIELDS = ("mlp_layer_types", "head_dim", "layer_types")
"""Fields of transformers' text model that DeepSeek V2's configuration lacks, or means otherwise."""
_OF_LATENTS = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Fields of latent attention: null or 0 where there is none, which transformers refuses."""


class PublishedConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The fields of config.json as they are."""

    model_type = MODEL_TYPE


def read_config(fields: Mapping[str, Any]) -> PretrainedConfig:
    """``fields`` of config.json. Raises ``CheckpointError`` if they are not DeepSeek-OCR's."""
    if (model_type := fields.get("model_type")) != MODEL_TYPE:
        raise CheckpointError(f"config.json: model_type={model_type!r} is not usable: expected {MODEL_TYPE!r}")
    own = {name: value for name, value in fields.items() if name != "auto_map"}
    try:
        return PublishedConfig.from_dict(own)
    except Exception as error:  # transformers' validators raise many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"config.json is not usable: {reason}") from error


def text_model(raw: Mapping[str, Any], *, has_head: bool) -> TextModel:
    """The text model of config.json ``raw``. Raises ``CheckpointError``."""
    fields = raw.get("language_config")
    if not isinstance(fields, dict):
        raise CheckpointError(f"language_config={fields!r} is not usable: expected the text model's configuration")
    uses_latents = fields.get("use_mla", raw.get("use_mla", True))
    architecture = "DeepseekV2ForCausalLM" if uses_latents else "DeepseekOCRTextForCausalLM"
    left_out = {"auto_map", *(() if uses_latents else _OF_LATENTS)}
    inherited = {name: raw[name] for name in ("quantization_config", "torch_dtype", "dtype") if raw.get(name)}
    own = {name: value for name, value in fields.items() if name not in left_out}
    fixed = {"architectures": [architecture], "model_type": "deepseek_v2", "use_mla": bool(uses_latents)}
    tied = bool(own.get("tie_word_embeddings", raw.get("tie_word_embeddings", False)))
    return TextModel(architecture, {**inherited, **own, **fixed, "tie_word_embeddings": tied and not has_head})


def text_model_of_transformers(config: PretrainedConfig, *, has_head: bool) -> TextModel:
    """The text model of ``OF_TRANSFORMERS``. Raises ``CheckpointError``."""
    fields = config.get_text_config(decoder=True).to_dict()
    kinds = fields.get("mlp_layer_types")
    dense = kinds.count("dense") if isinstance(kinds, list) else -1
    if dense < 0 or kinds != ["dense"] * dense + ["sparse"] * (fields["num_hidden_layers"] - dense):
        raise CheckpointError(f"mlp_layer_types={kinds!r} is not usable: expected dense layers, then sparse ones")
    own = {name: value for name, value in fields.items() if name not in _OWN_FIELDS and value is not None}
    fixed = {
        "architectures": ["DeepseekOCRTextForCausalLM"],
        "model_type": "deepseek_v2",
        "use_mla": False,
        "first_k_dense_replace": dense,
        "tie_word_embeddings": bool(own.get("tie_word_embeddings") or config.tie_word_embeddings) and not has_head,
    }
    return TextModel("DeepseekOCRTextForCausalLM", {**own, **fixed})
