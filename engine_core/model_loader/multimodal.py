"""The text model inside a multimodal checkpoint: which classes have one, its configuration, and its tensors' names.

The other parts (towers, projectors, talkers) are neither read nor hashed. Of text alone, these classes compute what
their text model computes: rotations by time, height and width are equal where all three are a token's position.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from engine_core.errors import CheckpointError
from engine_core.model_loader.text_model import TextModel
from engine_core.models.qwen3_5_moe import STACKED_EXPERTS
from engine_core.models.qwen3_moe import TRANSPOSED_EXPERTS

CLASSES = frozenset(
    {
        "AyaVisionForConditionalGeneration",
        "Cohere2VisionForConditionalGeneration",
        "DeepseekVLForConditionalGeneration",
        "DeepseekVLHybridForConditionalGeneration",
        "Exaone4_5_ForConditionalGeneration",
        "FunAsrNanoForConditionalGeneration",
        "Gemma3ForConditionalGeneration",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "Glm46VForConditionalGeneration",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "GlmAsrForConditionalGeneration",
        "GlmOcrForConditionalGeneration",
        "GotOcr2ForConditionalGeneration",
        "GraniteSpeechForConditionalGeneration",
        "GraniteSpeechPlusForConditionalGeneration",
        "Idefics2ForConditionalGeneration",
        "Idefics3ForConditionalGeneration",
        "InternVLForConditionalGeneration",
        "JanusForConditionalGeneration",
        "Kimi_K25ForConditionalGeneration",
        "LightOnOcrForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaNextVideoForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "MossTranscribeDiarizeForConditionalGeneration",
        "Ovis2ForConditionalGeneration",
        "PaddleOCRVLForConditionalGeneration",
        "QianfanOCRForConditionalGeneration",
        "Qwen2AudioForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ASRForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
        "VibeVoiceAsrForConditionalGeneration",
        "VideoLlama3ForConditionalGeneration",
        "VideoLlavaForConditionalGeneration",
        "VipLlavaForConditionalGeneration",
        "VoxtralForConditionalGeneration",
    }
)
"""Classes of transformers whose answers to text alone are those of their text model."""
PUBLISHED_AS = {
    "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
    "Qwen2_5OmniModel": "Qwen2_5OmniForConditionalGeneration",
}
"""Names in config.json files that are older than transformers' class, to its name."""

_TEXT_TYPES = {
    "gemma4_unified_text": "gemma4_text",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "glm_ocr_text": "glm4",
    "paddleocr_vl_text": "llama",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
"""``model_type`` of a text model that has no class of its own, to that of the model that computes the same."""
_FIXED: dict[str, dict[str, Any]] = {
    "gemma4_unified_text": {"hidden_size_per_layer_input": 0, "enable_moe_block": False},
    "glm_ocr_text": {"attention_bias": False},
    "qwen3_vl_moe_text": {TRANSPOSED_EXPERTS: True, "norm_topk_prob": True},
}
"""Fields that a text model's configuration lacks, as its module has but one way."""
_EITHER_WAY = "qwen3_5_moe_text"
"""A text model whose experts are published stacked or, if they are quantized, one by one."""
STACKED = ".experts.gate_up_proj"
"""End of the names of stacked experts' tensors."""
_RENAMED = {"paddleocr_vl_text": {"attention_bias": "use_bias", "mlp_bias": "use_bias"}}
"""Fields as that model calls them, to what the text model's configuration calls them."""
_ROTATIONS = ("mrope_section", "mrope_interleaved", "mrope_dim")
"""Which of a head's elements are rotated by time, height and width."""
_INHERITED = ("quantization_config", "eos_token_id", "is_causal")
"""Fields that stand beside the text model's, and mean its own."""
_TEXT = re.compile(r"^(?:thinker\.)?(?:model\.language_model|language_model\.model|model\.text_model)\.(?=\w)")
_HEAD = re.compile(r"^(?:(?:thinker|language_model|model)\.(?=lm_head\.)|thinker\.(?=model\.))")
_IN_PATTERN = re.compile(
    r"thinker(?:\\?\.)(?=model)|(?P<text>model\\?\.(?:language|text)_model|language_model\\?\.model|(?:language|text)_model)"
)
_OF_TEXT = re.compile(r"model\.(?:layers|embed_tokens\w*|norm|(?:per_layer|altup)_\w+)\.|lm_head\.")


def text_model(
    raw: Mapping[str, Any], config: PretrainedConfig, *, has_head: bool, stacks_experts: bool = False
) -> TextModel:
    """The text model of a checkpoint of one of ``CLASSES``, with config.json ``raw``, which transformers reads as
    ``config``. ``has_head``: whether its files have a head of its own. ``stacks_experts``: whether they have all
    experts of a layer in one tensor. Raises ``CheckpointError``.
    """
    text = config.get_text_config(decoder=True)
    if text is config and class_around(config.model_type) is None:
        raise CheckpointError(f"model_type={config.model_type!r} has no text model inside, as its class says")
    fields = {**text.to_dict(), **_FIXED.get(text.model_type, {})}
    fields |= {name: fields[own] for name, own in _RENAMED.get(text.model_type, {}).items()}
    model_type = _TEXT_TYPES.get(text.model_type, text.model_type)
    if (architecture := MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)) is None:
        raise CheckpointError(f"text_config: model_type={model_type!r} is not that of a language model")
    if model_type != text.model_type and fields.get("head_dim") is None:  # the other's default is a number
        fields["head_dim"] = text.hidden_size // text.num_attention_heads
    inherited = {name: raw[name] for name in _INHERITED if raw.get(name) is not None}
    if (quantization := inherited.get("quantization_config", fields.get("quantization_config"))) is not None:
        inherited["quantization_config"] = _renamed_within(quantization)
    if (dtype := raw.get("dtype", raw.get("torch_dtype"))) is not None and fields.get("dtype") is None:
        inherited["dtype"] = dtype
    # transformers ties a head that the files do not have, if either configuration says so
    tied = bool(fields.get("tie_word_embeddings") or getattr(config, "tie_word_embeddings", False))
    if "text_config" not in raw:  # a flat configuration speaks of one head, which transformers may pass over
        tied = bool(raw.get("tie_word_embeddings", tied))
    rope = fields.get("rope_parameters")
    return TextModel(
        architecture,
        {
            **fields,
            **inherited,
            "architectures": [architecture],
            "model_type": model_type,
            **({STACKED_EXPERTS: True} if model_type == _EITHER_WAY and stacks_experts else {}),
            "rope_parameters": _plain_rope(rope) if isinstance(rope, dict) else rope,
            "tie_word_embeddings": tied and not has_head,
        },
    )


def class_around(model_type: object) -> str | None:
    """The class of ``CLASSES`` whose text model has that ``model_type``, if it is named after it."""
    name = str(model_type)
    found = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(name.removesuffix("_text"))
    return found if name.endswith("_text") and found in CLASSES else None


def keeps_layout(model_type: object, names: Iterable[str]) -> bool:
    """Whether a text model published by itself has ``names`` for its tensors as the model around it has them."""
    stacks = model_type == _EITHER_WAY
    return any(_TEXT.match(name) or (stacks and name.endswith(STACKED)) for name in names)


def text_name(name: str) -> str:
    """A tensor's or module's name in the text model's own checkpoint, whatever layout the file has."""
    renamed, found = _TEXT.subn("model.", name, count=1)
    return renamed if found else _HEAD.sub("", name, count=1)


def is_of_text(name: str) -> bool:
    """Whether a tensor with that name in a file belongs to the text model, whether or not that needs it."""
    own = text_name(name)
    # a head that is named as the text model's own parts is that of older checkpoints, beside tied embeddings
    return _OF_TEXT.match(own) is not None or (_TEXT.match(name) is not None and not own.startswith("model.lm_head."))


def _plain_rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rotation by position alone."""
    plain = {name: value for name, value in parameters.items() if name not in _ROTATIONS}
    for name in ("type", "rope_type"):
        if plain.get(name) == "mrope":
            plain[name] = "default"
    return plain


def _renamed_within(value: Any) -> Any:
    """``value`` with every name of a module in it, and every pattern of names, as the text model's; keys included."""
    if isinstance(value, str):
        renamed = text_name(value)
        # in a pattern, such as "re:.*language_model.*_proj", the prefix may be anywhere, with its dots escaped or not
        return renamed if renamed != value else _IN_PATTERN.sub(lambda at: "model" if at["text"] else "", value)
    if isinstance(value, list):
        return [_renamed_within(each) for each in value]
    if isinstance(value, dict):
        return {_renamed_within(name): _renamed_within(each) for name, each in value.items()}
    return value
