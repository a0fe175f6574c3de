"""What kind of model a configuration describes, so that errors can say why Ringline does not run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers.models.auto import modeling_auto

from engine_core.errors import UnsupportedModelError

ATTENTION_TYPES = ("full_attention", "sliding_attention")
"""The ``layer_types`` of a dense decoder."""
_ALSO_FULL = "attention"
"""A hybrid's name for layers of full attention."""
_SERVED_ELSEWHERE = "which run only where Ringline has a model of its own"
"""Layers that keep a state."""

_PARTS = ("audio", "image", "text", "thinker", "vision", "vq")
"""Prefixes of the names of a multimodal model's sub-configurations."""

_DIFFUSION = ("diffusion", "dreammodel", "llada", "sdar")
_SCORING = ("Classification", "MultipleChoice", "QuestionAnswering", "RewardModel", "RewardModeling", "Scoring")

_RECURRENT = {
    "linear_attn": "linear attention",
    "linear_num_key_heads": "linear attention",
    "mamba": "state-space layers",
    "ssm": "state-space layers",
    "state_size": "state-space layers",
    "block_types": "recurrent layers",
    "lru_width": "recurrent layers",
    "mlstm": "recurrent layers",
    "rescale_every": "recurrent layers",
    "return_last_states": "recurrent layers",
    "conv_L_cache": "convolutions",
    "conv_kernel": "convolutions",
}
"""Substrings of field names that only such models have, with the layers they imply."""


def not_supported(architecture: str, reason: str) -> UnsupportedModelError:
    """The error for an unsupported model; ``reason`` explains it."""
    return UnsupportedModelError(
        f"architecture {architecture!r} is not supported: {reason}; supported architectures: docs/reference/models.md"
    )


def kind_of(architecture: str, fields: Mapping[str, Any], *, with_experts: bool = False) -> str | None:
    """What the model is, as the end of "it is …"; None if it may be a decoder of text that runs.

    ``fields`` are config.json's, unchecked, or as read by transformers, with defaults. ``with_experts``: whether it may
    have experts.
    """
    return (
        _multimodal(architecture, fields)
        or _other_task(architecture, fields)
        or _hybrid(fields)
        or (None if with_experts else _mixture(fields))
        or _other_class(architecture)
    )


def _multimodal(architecture: str, fields: Mapping[str, Any]) -> str | None:
    if parts := [name for name in fields if name.endswith("_config") and name.startswith(_PARTS)]:
        shown = [name for name in parts if not name.startswith("text")] or parts
        return f"a multimodal model ({', '.join(shown)}) {_of_its_text(fields.get('text_config'))}"
    if architecture in _classes("SPEECH_SEQ_2_SEQ", "CTC", "TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM"):
        return "a speech model, and sound is not served"
    if architecture in _classes("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM"):
        return f"a multimodal model {_of_its_text(None)}"
    return None


def _of_its_text(text: object) -> str:
    """Why the text of a multimodal model is not served; ``text`` configures its text model."""
    kind = _hybrid(text) if isinstance(text, dict) else None
    return "of a class whose text is not served" if kind is None else f"whose text model is {kind}"


def _other_task(architecture: str, fields: Mapping[str, Any]) -> str | None:
    """The kind of a model that generates no text, or not token by token; None for others."""
    if any(name in architecture.lower() for name in _DIFFUSION):
        return "a diffusion language model, which does not generate token by token"
    if architecture.endswith(_SCORING):
        return "a classifier or reward model, which generates no text"
    encodes = fields.get("is_decoder") is False and "add_cross_attention" in fields
    if encodes or architecture.endswith("ForMaskedLM") or architecture in _classes("TEXT_ENCODING"):
        return f"an encoder{' (is_decoder=False)' if encodes else ''} that is not one of those that are served"
    if fields.get("is_encoder_decoder") or architecture in _classes("SEQ_TO_SEQ_CAUSAL_LM"):
        return "an encoder-decoder or a part of one, and only models without an encoder are served"
    if architecture.endswith("ForConditionalGeneration"):
        return "a multimodal model or an encoder-decoder, and only decoders of text are served"
    return None


def _hybrid(fields: Mapping[str, Any]) -> str | None:
    """Models with layers other than full or sliding-window attention."""
    if fields.get("index_topk"):
        return "a model with sparse attention (index_topk), which is not served"
    listed = fields.get("layer_types")
    types = {each for each in listed if isinstance(each, str)} if isinstance(listed, list) else set()
    attending = {*ATTENTION_TYPES, _ALSO_FULL}
    if others := sorted(types - attending):
        named = f"layer_types: {', '.join(others)}"
        if types & attending and any(not each.endswith("_attention") or "linear" in each for each in others):
            return f"a hybrid of attention and other layers ({named}), {_SERVED_ELSEWHERE}"
        return f"a model with other layers than full or sliding attention ({named})"
    attends = "a hybrid of attention and" if "num_attention_heads" in fields else "a model of"
    names = [name for name in fields if not name.startswith("use_")]
    for part, layers in _RECURRENT.items():
        if (name := next((name for name in names if part in name), None)) is not None:
            return f"{attends} {layers} ({name}), {_SERVED_ELSEWHERE}"
    return None


def _mixture(fields: Mapping[str, Any]) -> str | None:
    parts = [value for name, value in fields.items() if name.endswith("_config") and isinstance(value, dict)]
    counted = (fields, *parts)  # DBRX has its experts in ffn_config
    experts = {name: value for each in counted for name, value in each.items() if "expert" in str(name) and value}
    if not experts:
        return None
    counts = [name for name in experts if name.endswith("experts") and "shared" not in name]
    name = next(iter([*counts, *experts]))
    number = f"={experts[name]}" if isinstance(experts[name], int) else ""
    return (
        f"a mixture of experts ({name}{number}), which runs only where it was tried or Ringline has a model of its own"
    )


def _other_class(architecture: str) -> str | None:
    """A class without a head that predicts tokens, or with a name that the fallback does not try."""
    if architecture in _classes("CAUSAL_LM"):
        tried = architecture.endswith("ForCausalLM")
        return None if tried else "not named …ForCausalLM, and only such classes run through transformers"
    if architecture in _classes():
        return "a model without a head that predicts tokens, such as one for embeddings"
    return "not a language model" if is_known(architecture) else None


def is_known(architecture: str) -> bool:
    """Whether transformers has a class of that name for any task."""
    return any(architecture in names.values() for names in _mappings())


def _classes(*tasks: str) -> set[str]:
    """The names of transformers' classes for ``tasks``, by default those without a head."""
    names = [f"MODEL_FOR_{task}_MAPPING_NAMES" for task in tasks] or ["MODEL_MAPPING_NAMES"]
    return {name for mapping in names for name in getattr(modeling_auto, mapping, {}).values() if isinstance(name, str)}


def _mappings() -> Sequence[Mapping[str, Any]]:
    """All of transformers' lists of classes, by task."""
    return [value for name, value in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")]
