"""Tiny multimodal checkpoints: a random text model inside a class of transformers, other parts without weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.gemma3n import modeling_gemma3n

from engine_core.model_loader.multimodal import CLASSES
from tests.engine_core.models.families.experts import EXPERTS, LLAMA4
from tests.engine_core.models.families.gemma3n import GEMMA3N
from tests.engine_core.models.families.hybrid import DELTA_NET
from tests.engine_core.models.families.latent import LATENT
from tests.engine_core.models.tiny_models import EAGER, SIZES, compute_token_by_token

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
GLM_MROPE = {**MROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
TEXT_FIELDS: dict[str, dict[str, Any]] = {
    "cohere2": {"logit_scale": 0.25},
    "deepseek_v3": {**LATENT, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
    "gemma3n_text": {**GEMMA3N, "num_hidden_layers": 5, "pad_token_id": 0},
    "gemma4_text": {"pad_token_id": 0, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 199},
    "gemma4_unified_text": {"pad_token_id": 0},
    "glm4v_text": {"rope_parameters": GLM_MROPE},
    "glm4v_moe_text": {**EXPERTS, "n_routed_experts": 8, "rope_parameters": GLM_MROPE},
    "glm_ocr_text": {"rope_parameters": GLM_MROPE},
    "granite": {"logits_scaling": 4.0},
    "llama4_text": {**LLAMA4, "num_hidden_layers": 3, "attention_chunk_size": 11, "floor_scale": 9},
    "paddleocr_vl_text": {"rope_parameters": MROPE, "head_dim": 16, "use_bias": True},
    "qwen2_5_omni_text": {"rope_parameters": MROPE},
    "qwen2_5_vl_text": {"rope_parameters": MROPE},
    "qwen2_vl_text": {"rope_parameters": MROPE},
    "qwen3": {"head_dim": 16},
    "qwen3_omni_moe_text": {**EXPERTS, "rope_parameters": {**MROPE, "mrope_interleaved": True}, "head_dim": 16},
    "qwen3_5_text": {**DELTA_NET, "rope_parameters": {**MROPE, "mrope_interleaved": True}},
    "qwen3_5_moe_text": {
        **EXPERTS | DELTA_NET,
        "num_experts": 8,
        "shared_expert_intermediate_size": 40,
        "rope_parameters": {**MROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.5},
    },
    "qwen3_vl_text": {"rope_parameters": {**MROPE, "mrope_interleaved": True}, "head_dim": 16},
    "qwen3_vl_moe_text": {**EXPERTS, "rope_parameters": {**MROPE, "mrope_interleaved": True}, "head_dim": 16},
}
"""Fields of tiny text models beside their sizes."""
OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"hidden_size": 1152, "num_attention_heads": 16}},
    "fun_asr_nano": {"adaptor_config": {"hidden_size": 64, "intermediate_size": 16, "num_attention_heads": 4}},
    "qwen3_asr": {"eos_token_id": 2},
}
"""Fields of composites beside their text model."""
WHOLE = {"qwen2_5_omni": "qwen2_5_omni_thinker", "qwen3_omni_moe": "qwen3_omni_moe_thinker"}
"""Composites that wrap another one, which is called thinker."""
TYPES = {
    name: model_type
    for mapping in ("CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT")
    for model_type, name in reversed(getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").items())
    if name in CLASSES
}
"""``model_type`` by class."""


def configuration(model_type: str) -> PretrainedConfig:
    """The configuration of a composite whose text model is tiny."""
    kind = CONFIG_MAPPING[model_type]
    text = kind().get_text_config(decoder=True)
    tiny = type(text)(**(SIZES | TEXT_FIELDS.get(text.model_type, {})))
    return kind(text_config=tiny.to_dict(), **OTHER_FIELDS.get(model_type, {}))


def make(config: PretrainedConfig, architecture: str) -> PreTrainedModel:
    """The composite; all of it but the text model and the head is on the meta device."""
    with torch.device("meta"), _without_timm():
        model: PreTrainedModel = getattr(transformers, architecture)._from_config(config, **EAGER)
    compute_token_by_token(model)
    owner = model if config.model_type == "llama4" else model.model
    name = "text_model" if hasattr(owner, "text_model") else "language_model"
    torch.manual_seed(0)
    text = getattr(owner, name)
    inner = type(text)._from_config(text.config, **EAGER).float()
    with torch.no_grad():
        for parameter in inner.parameters():
            parameter.normal_(0.0, 0.2).add_(1.0 if parameter.ndim == 1 else 0.0)
    setattr(owner, name, inner)
    if owner is model:  # then the head is the text model's
        return model.eval()
    model.lm_head = torch.nn.Linear(text.config.hidden_size, text.config.vocab_size, bias=False)
    if getattr(config, "tie_word_embeddings", False):
        model.lm_head.weight = inner.get_input_embeddings().weight
    return model.eval()


def _without_timm() -> AbstractContextManager[object]:
    """Gemma 3n's vision tower, which nobody reads, is timm's, which is not installed."""
    from_config = AutoModel.from_config

    def made(config: PretrainedConfig, **options: Any) -> torch.nn.Module:
        is_tower = config.model_type == "gemma3n_vision"
        return torch.nn.Identity() if is_tower else from_config(config, **options)

    return patch.object(modeling_gemma3n.AutoModel, "from_config", made)


def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Of ``ids`` [T], scaled as the text model's own class does: some composites leave that out."""
    text = model.config.get_text_config(decoder=True)
    given = {"input_ids": ids[None]}
    if model.config.model_type == "idefics3":  # it would move the embeddings to the device of its vision tower
        given = {"inputs_embeds": model.get_input_embeddings()(ids[None])}
    if model.config.model_type == "gemma3n":  # it would look all ids up in its other parts' embeddings, too
        given = {"inputs_embeds": model.get_input_embeddings()(ids[None])}
        given["per_layer_inputs"] = model.model.language_model.get_per_layer_inputs(ids[None])
    with torch.no_grad():
        computed: torch.Tensor = model(**given).logits[0]
    return computed * getattr(text, "logit_scale", 1.0) / getattr(text, "logits_scaling", 1.0)


def as_published(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The text model's tensors as checkpoints have them: an expert's by themselves, or of all, perhaps transposed."""
    tensors = {name: tensor for name, tensor in model.state_dict().items() if tensor.device.type != "meta"}
    if getattr(model.config, "tie_word_embeddings", False):
        del tensors["lm_head.weight"]
    if model.config.model_type == "qwen3_5_moe":
        return tensors
    is_transposed = model.config.model_type == "qwen3_vl_moe"
    for name in [name for name in tensors if ".mlp.experts." in name]:
        stacked, prefix = tensors.pop(name), name.rpartition(".")[0]
        if is_transposed:
            tensors[name] = stacked.transpose(1, 2)
            continue
        projections = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
        for expert, own in enumerate(stacked):
            for projection, rows in zip(projections, own.chunk(len(projections)), strict=True):
                tensors[f"{prefix}.{expert}.{projection}.weight"] = rows
    return tensors


def older_name(name: str) -> str:
    """In the layout of most checkpoints that were published before transformers 5."""
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    return name.replace("model.language_model.", "language_model.model.", 1)


def thinkers_name(name: str) -> str:
    """In the layout of a composite that also talks."""
    return f"thinker.{name.replace('model.language_model.', 'model.', 1)}"


def save(
    model: PreTrainedModel, directory: Path, architecture: str, rename: Callable[[str], str] = lambda name: name
) -> Path:
    """Its text model's tensors, and those of parts that nobody may read: they have NaN, or no numbers at all."""
    tensors = {rename(name): tensor.contiguous().clone() for name, tensor in as_published(model).items()}
    tensors |= {name: torch.full((3,), torch.nan) for name in ("model.vision_tower.layers.0.weight", "visual.norm")}
    tensors["talker.model.layers.0.mlp.weight"] = torch.zeros(2, dtype=torch.int16)
    save_file(tensors, directory / "model.safetensors")
    fields = model.config.to_dict() | {"architectures": [architecture]}
    if (outer := str(fields["model_type"]).removesuffix("_thinker")) == TYPES[architecture] in WHOLE:
        fields = {"architectures": [architecture], "model_type": outer, "thinker_config": fields}
    (directory / "config.json").write_text(json.dumps(fields, default=str))
    return directory
