"""Adapters add here what they add when PEFT loads them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from engine_core.errors import AdapterError
from engine_core.lora.adapter import open_adapter, read_adapter
from engine_core.lora.files import WEIGHTS
from engine_core.lora.peft_config import CONFIG
from engine_core.lora.targets import Projection, Table
from tests.engine_core.lora.adapters import (
    LIMITS,
    assert_same,
    make_adapter,
    save_adapter,
    targets_of,
    tiny_model,
    with_experts,
)


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": "all-linear", "use_rslora": True},
        {"target_modules": r".*\.(q|up)_proj", "lora_dropout": 0.5, "init_lora_weights": "gaussian"},
        {
            "target_modules": ["q_proj", "k_proj", "down_proj", "up_proj"],
            "rank_pattern": {
                "^model.layers.0.self_attn.q_proj": 8,
                r"layers\.\d+\.mlp\.(up|down)_proj": 3,
                "k_pro": 64,
            },
            "alpha_pattern": {
                "self_attn.k_proj": 32,
                r"[a-z_]+_proj": 1,
                "down_proj": 64,
                "o.e.layers.0.mlp.up_proj": 2,
            },
        },
        {"target_modules": ["embed_tokens", "lm_head", "o_proj"], "layers_to_transform": [1], "exclude_modules": ["x"]},
    ],
)
def test_matrices_of_linear_layers(fields: dict[str, object], tmp_path: Path) -> None:
    adapted, targets = make_adapter("qwen3", tmp_path, **fields)
    adapter = assert_same(adapted, tmp_path, targets)
    assert open_adapter(tmp_path, targets, LIMITS) == adapter.file
    assert adapter.file.rank == max(each.rank for each in [*adapter.linear.values(), *adapter.tables.values()])


@pytest.mark.parametrize("tied", [False, True])
def test_head_and_embedding_may_be_saved_whole(tied: bool, tmp_path: Path) -> None:
    fields = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"], "ensure_weight_tying": tied}
    adapted, targets = make_adapter("qwen3", tmp_path, {"tie_word_embeddings": tied}, **fields)
    adapter = assert_same(adapted, tmp_path, targets)
    model = adapted.base_model.model
    for table, module in ((Table.HEAD, model.lm_head), (Table.EMBEDDING, model.model.embed_tokens)):
        expected = module.modules_to_save["default"].weight.detach()
        torch.testing.assert_close(adapter.saved[table], expected, rtol=0, atol=0)


def test_tied_matrices_are_there_for_both_tables(tmp_path: Path) -> None:
    fields = {"target_modules": ["lm_head", "embed_tokens"], "ensure_weight_tying": True}
    adapted, targets = make_adapter("qwen3", tmp_path, {"tie_word_embeddings": True}, **fields)
    assert_same(adapted, tmp_path, targets)


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss", "llama4_text"])
@pytest.mark.parametrize(
    "parameters",
    [["gate_up_proj", "down_proj"], ["down_proj"], ["experts.gate_up_proj", "router.weight", "gate.weight"]],
)
def test_experts_in_one_parameter(model_type: str, parameters: list[str], tmp_path: Path) -> None:
    fields = {"target_modules": ["q_proj"], "target_parameters": parameters, "rank_pattern": {"gate_up_proj": 5}}
    adapted, targets = make_adapter(model_type, tmp_path, **fields)
    assert_same(adapted, tmp_path, targets)


def test_gate_and_up_of_one_parameter_share_their_ranks(tmp_path: Path) -> None:
    _, targets = make_adapter("qwen3_moe", tmp_path, target_modules=[], target_parameters=["gate_up_proj"])
    for experts in read_adapter(tmp_path, targets, LIMITS).experts.values():
        for of_expert in experts.values():
            assert of_expert[Projection.GATE].a is of_expert[Projection.UP].a


def test_experts_of_earlier_versions(tmp_path: Path) -> None:
    """Before 0.19, PEFT took the outputs of every parameter of experts for its inputs, as now if the module says so."""
    models = [tiny_model("qwen3_moe") for _ in range(2)]
    targets = targets_of(models[0])
    for model in models:
        for layer in model.model.layers:
            layer.mlp.experts.is_transposed = True
    save_adapter(models[0], tmp_path, target_modules=[], target_parameters=["gate_up_proj", "down_proj"])
    assert_same(PeftModel.from_pretrained(models[1], tmp_path), tmp_path, targets)


def test_experts_one_by_one_of_older_checkpoints(tmp_path: Path) -> None:
    """As transformers 4 had them, which PEFT converts."""
    model = tiny_model("mixtral")
    targets = targets_of(model)
    tensors = {}
    for name, experts in targets.experts.items():
        for expert in range(experts.num_experts):
            for projection in ("w1", "w2", "w3"):
                hidden, inner = experts.hidden_size, experts.intermediate_size
                inputs, outputs = (inner, hidden) if projection == "w2" else (hidden, inner)
                module = f"base_model.model.{name.replace('.mlp.', '.block_sparse_moe.')}.{expert}.{projection}"
                tensors[f"{module}.lora_A.weight"] = torch.randn(4, inputs)
                tensors[f"{module}.lora_B.weight"] = torch.randn(outputs, 4)
    save_file(tensors, tmp_path / WEIGHTS)
    fields = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": ["w1", "w2", "w3"]}
    (tmp_path / CONFIG).write_text(json.dumps(fields))
    adapted = PeftModel.from_pretrained(model, tmp_path)
    targets = replace(with_experts(targets, gate="w1", up="w3", down="w2"), rename=_as_now)
    assert_same(adapted, tmp_path, targets)
    adapted.save_pretrained(tmp_path / "again")
    assert_same(adapted, tmp_path / "again", targets)


def _as_now(name: str) -> str | None:
    return None if name.startswith("visual.") else name.replace(".block_sparse_moe.", ".mlp.")


def test_modules_have_the_names_that_the_model_has_for_them(tmp_path: Path) -> None:
    _, targets = make_adapter("qwen3", tmp_path, target_modules=["o_proj"])
    file = open_adapter(tmp_path, targets, LIMITS)
    _change(tmp_path, lambda name: name.replace(".model.layers.", ".model.block_sparse_moe.layers."))
    targets = replace(targets, rename=_as_layers)
    assert open_adapter(tmp_path, pickle.loads(pickle.dumps(targets)), LIMITS) == file


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_adapters_of_models_by_themselves_lack_a_prefix(kind: str, tmp_path: Path) -> None:
    """As those have it that were trained without a head: patterns, too, are over the names that PEFT has for them."""
    fields = {
        "target_modules": "all-linear",
        "modules_to_save": ["embed_tokens"],
        "rank_pattern": {"model.layers.1.self_attn.q_proj": 3},
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if kind == "qwen3_moe" else [],
        "exclude_modules": ["lm_head"],
    }
    _, targets = make_adapter(kind, tmp_path, **fields)
    file = open_adapter(tmp_path, targets, LIMITS)
    _change(tmp_path, lambda name: name.replace("base_model.model.model.", "base_model.model."))
    config = (tmp_path / CONFIG).read_text()
    (tmp_path / CONFIG).write_text(config.replace('"model.layers.1.self_attn.q_proj"', '"^layers.1.self_attn.q_proj"'))
    assert open_adapter(tmp_path, replace(targets, prefix="model"), LIMITS) == file
    with pytest.raises(AdapterError, match=r"is no layer of this model|may not replace"):
        open_adapter(tmp_path, targets, LIMITS)


def test_what_is_added_to_layers_that_no_result_depends_on_is_left_out(tmp_path: Path) -> None:
    _, all_targets = make_adapter("llama", tmp_path, target_modules=["q_proj"])
    whole = read_adapter(tmp_path, all_targets, LIMITS)
    linear = {name: each for name, each in all_targets.linear.items() if ".layers.0." in name}
    targets = replace(all_targets, linear=linear, unused=("model.layers.1.",))
    kept = read_adapter(tmp_path, targets, LIMITS)
    assert kept.linear.keys() == {"model.layers.0.self_attn.q_proj"}
    assert kept.file.nbytes == whole.file.nbytes // 2
    assert kept.file.digest != whole.file.digest
    with pytest.raises(AdapterError, match="is no layer of this model"):
        read_adapter(tmp_path, replace(targets, unused=()), LIMITS)
    with pytest.raises(AdapterError, match=r"adds to 'model.layers.0.self_attn.q_proj' alone, which no result"):
        read_adapter(tmp_path, replace(targets, linear={}, unused=("model.layers.",)), LIMITS)


def test_what_has_the_prefix_and_what_lacks_it_are_one_place(tmp_path: Path) -> None:
    _, targets = make_adapter("qwen3", tmp_path, target_modules=["q_proj"])
    tensors = load_file(tmp_path / WEIGHTS)
    twice = {name.replace(".model.layers.0.", ".layers.0."): each.clone() for name, each in tensors.items()}
    save_file(tensors | twice, tmp_path / WEIGHTS)
    with pytest.raises(AdapterError, match="two tensors for one place"):
        open_adapter(tmp_path, replace(targets, prefix="model"), LIMITS)


def _as_layers(name: str) -> str | None:
    return name.replace(".block_sparse_moe.", ".")


def _change(
    directory: Path,
    rename: Callable[[str], str] = str,
    change: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone,
) -> None:
    tensors = load_file(directory / WEIGHTS)
    save_file({rename(name): change(each) for name, each in tensors.items()}, directory / WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_keep_the_type_of_the_file(dtype: torch.dtype, tmp_path: Path) -> None:
    adapted, targets = make_adapter("qwen3", tmp_path, target_modules=["o_proj"])
    _change(tmp_path, change=lambda each: each.to(dtype))
    adapter = read_adapter(tmp_path, targets, LIMITS)
    for name, module in adapted.base_model.model.named_modules():
        if name in adapter.linear:
            for found, expected in ((adapter.linear[name].a, module.lora_A), (adapter.linear[name].b, module.lora_B)):
                assert found.dtype == dtype
                torch.testing.assert_close(found, expected["default"].weight.detach().to(dtype), rtol=0, atol=0)


def test_size_is_that_of_ranks_in_units_of_16_in_the_models_type(tmp_path: Path) -> None:
    _, targets = make_adapter("qwen3", tmp_path, target_modules=["up_proj"], rank_pattern={"layers.1.mlp.up_proj": 17})
    expected = (16 + 32) * (32 + 48)
    assert open_adapter(tmp_path, targets, LIMITS).nbytes == 4 * expected
    assert open_adapter(tmp_path, replace(targets, dtype="bfloat16"), LIMITS).nbytes == 2 * expected


def test_equal_digests_have_the_same_meaning(tmp_path: Path) -> None:
    """Whatever the names of the adapter's directory and tensors, their order, and what else the files say."""
    _, targets = make_adapter("qwen3", tmp_path / "one", target_modules=["q_proj", "o_proj"])
    tensors = load_file(tmp_path / "one" / WEIGHTS)
    config = json.loads((tmp_path / "one" / CONFIG).read_text())

    def digest(tensors: dict[str, torch.Tensor], **fields: object) -> str:
        (tmp_path / "two").mkdir(exist_ok=True)
        save_file(tensors, tmp_path / "two" / WEIGHTS, {"made": "later"})
        (tmp_path / "two" / CONFIG).write_text(json.dumps(config | fields))
        return open_adapter(tmp_path / "two", targets, LIMITS).digest

    same = open_adapter(tmp_path / "one", targets, LIMITS).digest
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    other = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    changed = tensors[name].clone()
    changed[3, 1] += 1
    swapped = {name: tensors[other], other: tensors[name]}
    assert digest(dict(reversed(tensors.items())), base_model_name_or_path="x", lora_dropout=0.1) == same
    assert digest({key.replace(".weight", ".default.weight"): each for key, each in tensors.items()}) == same
    assert digest(tensors, lora_alpha=12, r=4, alpha_pattern={".*": 6}) == same
    assert (
        len({same, digest(tensors, lora_alpha=12), digest(tensors | {name: changed}), digest(tensors | swapped)}) == 4
    )
