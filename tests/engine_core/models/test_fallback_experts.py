"""Mixtures of experts through the fallback: the engine's experts in transformers' modules.

All of its families go through test_transformers_fallback.py and test_against_transformers.py, too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.errors import UnsupportedModelError
from engine_core.models.fallback import rules
from engine_core.models.fallback.experts import is_experts, layout_of_experts, shape_of_experts
from engine_core.weights.expert_tensors import SeparateExperts
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

IDS = torch.arange(40) * 31 % 196
PLACE = "model.layers.1.mlp.experts"


def test_int8_is_that_of_a_model_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MIXTURES", ("Qwen3MoeForCausalLM",))
    save_model(make_model(configuration("qwen3_moe")), tmp_path)
    options = {"dtype": "float32", "quantization": "int8"}
    own, model = (build_model(open_at(tmp_path, model_impl=impl, **options)) for impl in ("ringline", "transformers"))
    expected = logits_of(own, IDS)
    assert (logits_of(model, IDS) - expected).std() < 0.02 * expected.std()
    assert model.weight_bytes == pytest.approx(model.expected_weight_bytes, rel=0.1)


def test_the_name_that_a_published_checkpoint_has(tmp_path: Path) -> None:
    reference = make_model(configuration("phimoe-padded"))
    path = save_model(reference, tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"architectures": ["PhiMoEForCausalLM"]}), "utf-8")
    with torch.no_grad():
        expected = reference(IDS[None]).logits[0]
    torch.testing.assert_close(logits_of(load(tmp_path), IDS), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "names"),
    [("phimoe-padded", ("w1", "w3", "w2")), ("laguna-windows", ("gate_proj", "up_proj", "down_proj"))],
)
def test_names_of_tensors(name: str, names: tuple[str, str, str]) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configuration(name))
    assert is_experts(model.get_submodule(PLACE))
    found = layout_of_experts(model, PLACE)
    assert isinstance(found, SeparateExperts)
    assert (found.gate, found.up, found.down) == names
    assert found.prefix in (PLACE, PLACE.replace("mlp", "block_sparse_moe"))


def test_other_experts_are_refused() -> None:
    with torch.device("meta"):
        interleaved = AutoModelForCausalLM.from_config(configuration("gpt_oss"))
        stacked = AutoModelForCausalLM.from_config(configuration("granitemoe"))
    block = interleaved.get_submodule("model.layers.1.mlp")
    with pytest.raises(UnsupportedModelError, match="experts of another kind than gated ones without biases"):
        shape_of_experts(PLACE, block.experts, block)
    with pytest.raises(UnsupportedModelError, match=r"stored in another form than one by one: as .*input_linear"):
        layout_of_experts(stacked, "model.layers.1.block_sparse_moe.experts")
