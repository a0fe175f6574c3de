"""The text of multimodal checkpoints: their text model's logits, from every layout of names, nothing else read."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_core.errors import CheckpointError, EngineError
from engine_core.llm import configure
from engine_core.model_loader.multimodal import CLASSES, is_of_text, text_model, text_name
from engine_core.model_loader.safetensors_reader import find_tensors
from engine_core.models.language_model import LanguageModel
from engine_core.progress import StartupProgress, WarningsOnly
from engine_core.startup import start_engine
from tests.engine_core.models.driver import build_model, logits_of, open_at
from tests.engine_core.models.multimodal_models import (
    TYPES,
    WHOLE,
    as_published,
    configuration,
    logits,
    make,
    older_name,
    save,
    thinkers_name,
)

IDS = torch.tensor([(31 * place) % 196 + 3 for place in range(24)])
SOON = ("Gemma3ForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
LATER = sorted(set(TYPES) - set(SOON) - {name for name, kind in TYPES.items() if kind in WHOLE})


def load(directory: Path) -> LanguageModel:
    """The text model, by itself."""
    return build_model(open_at(directory, dtype="float32", language_model_only=True))


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_every_class_is_one_of_transformers() -> None:
    assert set(TYPES) == CLASSES


@pytest.mark.parametrize("architecture", [*SOON, *(pytest.param(name, marks=pytest.mark.models) for name in LATER)])
def test_logits_of_text_are_those_of_the_whole_model(architecture: str, tmp_path: Path) -> None:
    model = make(configuration(TYPES[architecture]), architecture)
    expected = logits(model, IDS)
    assert_equal(logits_of(load(save(model, tmp_path, architecture)), IDS), expected)
    assert_equal(logits_of(load(save(model, tmp_path, architecture, older_name)), IDS), expected)


@pytest.mark.models
@pytest.mark.parametrize("model_type", WHOLE)
def test_a_model_that_also_talks_is_served_by_its_thinker(model_type: str, tmp_path: Path) -> None:
    (whole,) = (name for name, kind in TYPES.items() if kind == model_type)
    (thinker,) = (name for name, kind in TYPES.items() if kind == WHOLE[model_type])
    model = make(configuration(WHOLE[model_type]), thinker)
    assert_equal(logits_of(load(save(model, tmp_path, whole, thinkers_name)), IDS), logits(model, IDS))


def test_a_head_in_the_files_is_not_tied_whatever_the_configuration_says(tmp_path: Path) -> None:
    config = configuration("mistral3")
    assert config.tie_word_embeddings
    config.tie_word_embeddings = False
    model = make(config, "Mistral3ForConditionalGeneration")
    directory = save(model, tmp_path, "Mistral3ForConditionalGeneration")
    fields = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {"tie_word_embeddings": True}))
    assert_equal(logits_of(load(directory), IDS), logits(model, IDS))


def test_a_flat_configuration_is_read(tmp_path: Path) -> None:
    """As Qwen2-VL's checkpoints have it, whose text model's tensors are called like those of a model of text."""
    model = make(configuration("qwen2_vl"), "Qwen2VLForConditionalGeneration")
    directory = save(
        model, tmp_path, "Qwen2VLForConditionalGeneration", lambda name: name.replace(".language_model", "")
    )
    fields = json.loads((directory / "config.json").read_text())
    text = fields.pop("text_config")
    text["rope_scaling"] = {"type": "mrope", "mrope_section": text.pop("rope_parameters")["mrope_section"]}
    text["rope_theta"] = 10000.0
    (directory / "config.json").write_text(json.dumps({**text, **fields}))
    assert_equal(logits_of(load(directory), IDS), logits(model, IDS))


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("named_after_text", [False, True])
@pytest.mark.parametrize(
    ("model_type", "whole", "alone"),
    [
        ("gemma3", "Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
        *(
            pytest.param(kind, f"{name}ForConditionalGeneration", f"{name}ForCausalLM", marks=pytest.mark.models)
            for kind, name in (("qwen3_5", "Qwen3_5"), ("qwen3_5_moe", "Qwen3_5Moe"))
        ),
    ],
)
def test_a_text_model_by_itself_may_keep_the_class_or_the_names_of_the_whole(
    model_type: str, whole: str, alone: str, named_after_text: bool, renamed: bool, tmp_path: Path
) -> None:
    model = make(configuration(model_type), whole)
    tensors = as_published(model)
    if renamed:
        tensors = {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    fields = model.config.get_text_config(decoder=True).to_dict()
    fields |= {"architectures": [alone if named_after_text else whole], "tie_word_embeddings": False}
    if "lm_head.weight" not in tensors:
        fields["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert_equal(logits_of(load(tmp_path), IDS), logits(model, IDS))


def test_an_engine_says_what_it_does_not_serve_unless_that_is_wanted(tmp_path: Path) -> None:
    name = "Mistral3ForConditionalGeneration"
    directory = save(make(configuration("mistral3"), name), tmp_path, name)
    with pytest.warns(RuntimeWarning, match=f"only the text of {name} is served"):
        start_engine(configure(model=str(directory), max_model_len=64), StartupProgress(WarningsOnly())).close()
    options = {"max_model_len": 64, "language_model_only": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start_engine(configure(model=str(directory), **options), StartupProgress(WarningsOnly())).close()


def test_a_tensor_of_the_text_model_that_is_not_expected_is_refused(tmp_path: Path) -> None:
    model = make(configuration("gemma3"), "Gemma3ForConditionalGeneration")
    directory = save(
        model,
        tmp_path,
        "Gemma3ForConditionalGeneration",
        lambda name: name.replace("layers.2.mlp.up_proj", "layers.2.mlp.side_proj"),
    )
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.side_proj\.weight"):
        build_model(open_at(directory, dtype="float32"))


def test_tensors_of_another_part_say_nothing_of_the_number_type(tmp_path: Path) -> None:
    name = "Gemma3ForConditionalGeneration"
    directory = save(make(configuration("gemma3"), name), tmp_path, name)
    config = json.loads((directory / "config.json").read_text())
    for fields in (config, config["text_config"], config["vision_config"]):
        fields.pop("dtype", None)
    (directory / "config.json").write_text(json.dumps(config))
    stored = {each: tensor.bfloat16() for each, tensor in load_file(directory / "model.safetensors").items()}
    save_file(stored | {"a_tower.weight": torch.ones(1)}, directory / "model.safetensors")
    assert next(iter(find_tensors(directory))) == "a_tower.weight"
    assert open_at(directory).spec.dtype == "bfloat16"


@pytest.mark.parametrize("added", ["model.language_model.extra_scale", "model.language_model.norm2.weight"])
def test_a_tensor_below_the_text_model_is_one_of_it(added: str, tmp_path: Path) -> None:
    name = "Gemma3ForConditionalGeneration"
    directory = save(make(configuration("gemma3"), name), tmp_path, name)
    stored = load_file(directory / "model.safetensors")
    save_file(stored | {added: torch.ones(4)}, directory / "model.safetensors")
    own = added.replace("language_model.", "")
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({own}\)"):
        build_model(open_at(directory, dtype="float32"))


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "llama"},
        {"text_config": 5},
        {"text_config": {"num_attention_heads": 0}},
        {"text_config": {"hidden_size": "x"}},
        {"quantization_config": json.loads("[" * 900 + "]" * 900)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_text_model_that_cannot_be_read_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    fields = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", **changed}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(EngineError):
        open_at(tmp_path, "dummy", dtype="bfloat16")


def test_modules_that_are_not_quantized_are_named_as_in_the_text_model() -> None:
    kept = ["lm_head", "model.visual.blocks.0", "re:.*gate$", "model.language_model.layers.0.mlp.gate"]
    raw = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": kept, "language_model.model.a": 4}}
    read = text_model(raw, configuration("qwen3_vl"), has_head=True).fields["quantization_config"]
    assert read == {
        "quant_method": "fp8",
        "modules_to_not_convert": ["lm_head", "model.visual.blocks.0", "re:.*gate$", "model.layers.0.mlp.gate"],
        "model.a": 4,
    }


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"+:model\.language_model\.layers\.1\..*", r"+:model\.layers\.1\..*"),
        ("-:language_model.model.layers.1", "-:model.layers.1"),
        ("re:.*language_model.*_proj$", "re:.*model.*_proj$"),
        (r"re:^thinker\.model\.layers", r"re:^model\.layers"),
        ("re:.*visual.*", "re:.*visual.*"),
    ],
)
def test_patterns_of_modules_are_those_of_the_text_model(pattern: str, expected: str) -> None:
    """Also where they stand with the text model's own fields."""
    raw = {"quantization_config": {"targets": [pattern], "dynamic": {pattern: {"bits": 8}}}}
    inside = configuration("qwen3_vl")
    inside.text_config.quantization_config = raw["quantization_config"]
    for fields, config in ((raw, configuration("qwen3_vl")), ({}, inside)):
        read = text_model(fields, config, has_head=True).fields["quantization_config"]
        assert read == {"targets": [expected], "dynamic": {expected: {"bits": 8}}}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("language_model.model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("model.text_model.norm.weight", "model.norm.weight"),
        ("thinker.model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight"),
        ("model.language_model.norm2.weight", "model.norm2.weight"),
        ("language_model.model.extra_scale", "model.extra_scale"),
        ("model.language_model.lm_head.weight", None),
        ("model.visual.blocks.0.norm1.weight", None),
        ("talker.model.layers.0.mlp.gate.weight", None),
        ("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", None),
        ("multi_modal_projector.linear_1.weight", None),
    ],
)
def test_names_of_every_layout(name: str, expected: str | None) -> None:
    assert (text_name(name) if is_of_text(name) else None) == expected
