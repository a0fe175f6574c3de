"""Vectors with adapters are those of PEFT, whose adapters of a model by itself name its parts without the prefix."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import PreTrainedModel

from engine_core.llm import LLM, LoRARequest
from engine_core.lora.files import WEIGHTS
from tests.engine_core.models.encoders import CASES, save
from tests.engine_core.pooling.checkpoints import hidden_states, lay_out, random_model, texts

INPUTS = texts([31, 5, 48])
ENCODERS = ("bert", "bert-masked-lm", "gemma3-encoder", "modernbert", "roberta-masked-lm", "xlm-roberta")


def adapt(base: PreTrainedModel, path: Path, **fields: Any) -> PeftModel:
    """An adapter of random numbers for all linear layers, saved at ``path``."""
    torch.manual_seed(5)
    fields = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False, **fields}
    model = get_peft_model(copy.deepcopy(base), LoraConfig(**fields)).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2)
    model.save_pretrained(str(path))
    return model


def vectors(model: torch.nn.Module, row: int) -> list[np.ndarray[Any, Any]]:
    """Of ``INPUTS``, each by the hidden state of one of its tokens."""
    found = [hidden_states(model, each)[row].numpy() for each in INPUTS]  # type: ignore[arg-type]
    return [each / np.linalg.norm(each) for each in found]


def check(base: torch.nn.Module, adapted: torch.nn.Module, checkpoint: Path, adapter: Path, row: int) -> None:
    """An engine's vectors of the same inputs, without and with the adapter."""
    request = LoRARequest("a", 1, adapter)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8}
    with LLM(checkpoint, skip_tokenizer_init=True, enable_lora=True, **options) as llm:
        found = llm.embed([list(each) for each in (*INPUTS, *INPUTS)], lora_request=[None] * 3 + [request] * 3)
    expected = [*vectors(base, row), *vectors(adapted, row)]
    for output, each in zip(found, expected, strict=True):
        np.testing.assert_allclose(output.outputs.embedding, each, atol=2e-5)
    assert max(np.abs(a - b).max() for a, b in zip(expected[:3], expected[3:], strict=True)) > 0.05


@pytest.mark.parametrize("has_head", [False, True])
def test_vectors_of_a_decoder(has_head: bool, tmp_path: Path) -> None:
    """Whether its adapter was trained on the model by itself, or below a head."""
    base = random_model(tmp_path / "base")
    lay_out(tmp_path / "base")
    whole = random_model(tmp_path / "whole", "Qwen3ForCausalLM")
    whole.model = base  # type: ignore[assignment]
    adapted = adapt(whole if has_head else base, tmp_path / "adapter", exclude_modules=["lm_head"])
    names = load_file(tmp_path / "adapter" / WEIGHTS)
    assert all(name.startswith("base_model.model.model.") is has_head for name in names)
    model = adapted.base_model.model.model if has_head else adapted
    check(base, model, tmp_path / "base", tmp_path / "adapter", -1)


@pytest.mark.parametrize("case", [pytest.param(each, marks=pytest.mark.models) for each in ENCODERS])
def test_vectors_of_an_encoder(case: str, tmp_path: Path) -> None:
    kind, config = CASES[case]
    base = save(getattr(transformers, kind), config, tmp_path / "base")
    lay_out(tmp_path / "base", {"pooling_mode_cls_token": True})
    adapted = adapt(base, tmp_path / "adapter")  # the pooler and the head for tokens, too, which no vector depends on
    inner = base.base_model_prefix if hasattr(base, base.base_model_prefix) else ""
    plain, model = (each.get_submodule(inner) for each in (base, adapted.base_model.model))
    check(plain, model, tmp_path / "base", tmp_path / "adapter", 0)
