from __future__ import annotations

import pytest

from engine_core.model_loader.lora_names import ModuleNames
from engine_core.models.bert import BertModel
from engine_core.models.language_model import LanguageModel
from engine_core.models.nemotron_h import NemotronHForCausalLM
from engine_core.models.qwen3 import Qwen3ForCausalLM

Q = "layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("model", "of_multimodal", "module", "name"),
    [
        (Qwen3ForCausalLM, False, f"model.{Q}", f"model.{Q}"),
        (Qwen3ForCausalLM, False, f"model.language_model.{Q}", f"model.{Q}"),
        (Qwen3ForCausalLM, False, f"language_model.model.{Q}", f"model.{Q}"),
        (Qwen3ForCausalLM, False, "model.visual.blocks.0.attn.qkv", "model.visual.blocks.0.attn.qkv"),
        (Qwen3ForCausalLM, False, "lm_head", "lm_head"),
        (Qwen3ForCausalLM, True, f"model.{Q}", f"model.{Q}"),
        (Qwen3ForCausalLM, True, f"model.language_model.{Q}", f"model.{Q}"),
        (Qwen3ForCausalLM, True, f"thinker.model.{Q}", f"model.{Q}"),
        (Qwen3ForCausalLM, True, "language_model.lm_head", "lm_head"),
        (Qwen3ForCausalLM, True, "model.visual.blocks.0.attn.qkv", None),
        (BertModel, False, "encoder.layer.0.attention.self.query", "bert.encoder.layer.0.attention.self.query"),
        (NemotronHForCausalLM, False, f"model.{Q}", f"backbone.{Q}"),
    ],
)
def test_names_in_the_models_checkpoint(
    model: type[LanguageModel], of_multimodal: bool, module: str, name: str | None
) -> None:
    assert ModuleNames(model, of_multimodal, ())(module) == name
