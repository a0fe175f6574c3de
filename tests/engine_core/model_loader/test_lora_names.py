from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from engine_core.model_loader.lora_names import RENAMED, ModuleNames
from engine_core.models.bert import BertModel
from engine_core.models.language_model import LanguageModel
from engine_core.models.nemotron_h import NemotronHForCausalLM
from engine_core.models.qwen3 import Qwen3ForCausalLM
from engine_core.models.registry import ARCHITECTURES, ENCODERS

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


def renamed_by_transformers(model_type: str) -> Iterator[tuple[str, str]]:
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    literal = re.compile(r"(?:[\w.]|\\\.)+")
    for each in get_checkpoint_conversion_mapping(model_type) or []:  # type: ignore[no-untyped-call]
        if type(each) is not WeightRenaming:
            continue
        for ours, theirs in zip(each.source_patterns, each.target_patterns, strict=False):
            if literal.fullmatch(ours) and literal.fullmatch(theirs) and theirs.endswith((".", ".weight")):
                yield ours.replace("\\", ""), theirs.replace("\\", "")


def test_parts_are_renamed_as_transformers_renames_them() -> None:
    models: set[type[LanguageModel]] = {*ARCHITECTURES.values(), *ENCODERS.values()}
    types = {str(getattr(model, "model_type", "")) for model in models}
    renamed = {each: tuple(renamed_by_transformers(each)) for each in types}
    assert {each: parts for each, parts in renamed.items() if parts} == RENAMED
