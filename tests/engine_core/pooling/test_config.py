from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.model_loader.pooling_model import choose_pooling
from engine_core.pooling.config import (
    HeadActivation,
    Layout,
    PoolingType,
    Sources,
    TokenHead,
    read_activation,
    read_labels,
    resolved,
)
from engine_core.pooling.facts import PairForm, PoolingFacts, Similarity
from engine_core.pooling.options import PoolerOptions
from engine_core.pooling.params import PoolingTask

from .checkpoints import lay_out, write

RAW = {"model_type": "qwen3"}


def test_the_layout_of_sentence_transformers_is_read(tmp_path: Path) -> None:
    lay_out(tmp_path, {"pooling_mode": "cls"}, prompts={"query": "q: ", "document": ""}, default_prompt_name="query")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    choice = choose_pooling(tmp_path, RAW, "Qwen3ForCausalLM", ModelConfig())
    assert choice is not None
    layout = choice.layout
    assert (layout.pooling, layout.normalizes, layout.max_length) == (PoolingType.CLS, True, 128)
    assert (layout.prompts, layout.default_prompt) == ({"query": "q: ", "document": ""}, "query")
    assert (choice.runs_as, choice.tasks[0]) == ("Qwen3ForCausalLM", PoolingTask.EMBED)


def test_the_transformer_module_has_had_several_names(tmp_path: Path) -> None:
    lay_out(tmp_path, similarity_fn_name="dot")
    (tmp_path / "sentence_xlm-roberta_config.json").write_text(json.dumps({"max_seq_length": 96}))
    choice = choose_pooling(tmp_path, RAW, "Qwen3ForCausalLM", ModelConfig())
    assert choice is not None
    assert (choice.layout.max_length, choice.layout.similarity) == (96, Similarity.DOT)


def test_a_similarity_that_is_not_known_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, similarity_fn_name="hamming")
    with pytest.raises(UnsupportedModelError, match="similarity_fn_name='hamming' is not supported"):
        choose_pooling(tmp_path, RAW, "Qwen3Model", ModelConfig())


def test_what_newer_releases_of_sentence_transformers_write_is_read(tmp_path: Path) -> None:
    """The length is the tokenizer's, and a cross-encoder's activation stands beside the prompts."""
    lay_out(tmp_path, truncate_dim=32, activation_fn="torch.nn.modules.linear.Identity")
    layouts = []
    for fields in ({"model_max_length": 20}, {"model_max_length": 10**30}, {"model_max_length": None}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
        choice = choose_pooling(tmp_path, RAW, "Qwen3ForSequenceClassification", ModelConfig())
        assert choice is not None
        layouts.append(choice.layout)
    assert [layout.max_length for layout in layouts] == [20, None, None]
    assert (layouts[0].dimensions, layouts[0].activation) == (32, HeadActivation.NONE)
    for fields in ({"truncate_dim": 0}, {"truncate_dim": "32"}, {"activation_fn": "torch.nn.Mish"}):
        lay_out(tmp_path, **fields)
        with pytest.raises(CheckpointError, match=r"truncate_dim=.* is not usable|activation_fn='torch.nn.Mish'"):
            choose_pooling(tmp_path, RAW, "Qwen3Model", ModelConfig())


def test_a_class_says_what_it_computes(tmp_path: Path) -> None:
    def of(architecture: str, **options: Any) -> tuple[str, PoolingTask] | None:
        choice = choose_pooling(tmp_path, RAW, architecture, ModelConfig(**options))
        return None if choice is None else (choice.runs_as, choice.tasks[0])

    assert of("Qwen3ForCausalLM") is None
    assert of("Qwen3ForCausalLM", runner="pooling") == ("Qwen3ForCausalLM", PoolingTask.EMBED)
    assert of("Qwen3Model") == ("Qwen3ForCausalLM", PoolingTask.EMBED)
    assert of("Qwen3ForSequenceClassification") == ("Qwen3ForCausalLM", PoolingTask.CLASSIFY)
    assert of("Qwen2ForRewardModel") == ("Qwen2ForCausalLM", PoolingTask.CLASSIFY)
    assert of("Qwen3Model", runner="generate") is None
    with pytest.raises(
        ConfigError, match=r"pooler_config='{}' is not usable: expected no value with --runner generate"
    ):
        of("Qwen3Model", runner="generate", pooler_config="{}")


@pytest.mark.parametrize(
    ("pooling", "dense", "expected"),
    [
        ({"pooling_mode": ["mean", "cls"]}, {}, "pooling by ['mean', 'cls'] is not supported"),
        (
            {"pooling_mode": "attention"},
            {},
            "pooling by ['attention'] is not supported: expected one of cls, lasttoken",
        ),
        ({"pooling_mode": [["mean"]]}, {}, "pooling by [['mean']] is not supported"),
        ({"pooling_mode": "mean", "include_prompt": False}, {}, "include_prompt=false is not supported"),
        ({}, {"in_features": 0, "out_features": 4}, "in_features=0 is not usable"),
        ({}, {"in_features": 64, "out_features": 4, "activation_function": "torch.nn.Mish"}, "'torch.nn.Mish' is not"),
        ({}, {"in_features": 4, "out_features": 4, "module_output_name": "x"}, "module_output_name='x' is not"),
        ({}, {"in_features": 64, "out_features": 4, "use_residual": True}, "use_residual is not supported"),
    ],
)
def test_a_layout_that_is_not_supported_is_refused(
    pooling: dict[str, Any], dense: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    lay_out(tmp_path, pooling)
    if dense:
        modules = json.loads((tmp_path / "modules.json").read_text())
        modules.insert(2, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        write(tmp_path / "2_Dense", dense)
    with pytest.raises(CheckpointError) as caught:
        choose_pooling(tmp_path, RAW, "Qwen3Model", ModelConfig())
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({}, "does not hold a JSON list"),
        ([{"type": "x.Transformer", "path": "../other"}], "expected modules with a type, and a path below"),
        ([{"type": "x.Transformer", "path": "0_Transformer"}], "the Transformer in '0_Transformer' is not read"),
        ([{"type": "x.Transformer"}, {"type": "x.WeightedLayerPooling"}], "the module WeightedLayerPooling is not"),
        ([{"type": "x.Transformer"}, {"type": "x.Normalize"}, {"type": "x.Pooling"}], "the module Pooling is not"),
    ],
)
def test_modules_that_are_not_known_are_refused(modules: Any, expected: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=expected):
        choose_pooling(tmp_path, RAW, "Qwen3Model", ModelConfig())


def test_labels_and_what_becomes_of_their_numbers() -> None:
    assert read_labels({}) == ("LABEL_0", "LABEL_1")
    assert read_labels({"num_labels": 1}) == ("LABEL_0",)
    assert read_labels({"id2label": {"1": "b", "0": "a"}}) == ("a", "b")
    for wrong in ({"num_labels": 0}, {"id2label": {"1": "b"}}, {"id2label": []}):
        with pytest.raises(CheckpointError, match="is not usable"):
            read_labels(wrong)
    assert read_activation({}, 1) is HeadActivation.SIGMOID
    assert read_activation({}, 3) is HeadActivation.SOFTMAX
    assert read_activation({"problem_type": "regression"}, 1) is HeadActivation.NONE
    named = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    assert read_activation({"problem_type": "multi_label_classification", **named}, 1) is HeadActivation.NONE
    with pytest.raises(UnsupportedModelError, match=r"activation_fn='torch.nn.Mish' is not supported"):
        read_activation({"sbert_ce_default_activation_function": "torch.nn.Mish"}, 1)


@pytest.mark.parametrize(
    ("general", "expected"),
    [
        ({"default_prompt_name": ["query"]}, r"default_prompt_name=\['query'\] is none of its prompts"),
        ({"prompts": {"query": "\ud800"}}, r"prompts has half a character: '\\ud800'"),
        ({"prompts": {"\ud800": "q: "}}, "prompts has half a character"),
        ({"prompts": {"query": "q" * 2**20}}, "prompts has 1048581 bytes: expected at most 1048576"),
    ],
)
def test_prompts_that_clients_cannot_be_told_are_refused(
    general: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    lay_out(tmp_path, **{"prompts": {"query": "q: "}, **general})
    with pytest.raises(CheckpointError, match=expected):
        choose_pooling(tmp_path, RAW, "Qwen3Model", ModelConfig())


def test_names_of_labels_that_clients_cannot_be_told_are_refused() -> None:
    with pytest.raises(CheckpointError, match="id2label has half a character"):
        read_labels({"id2label": {"0": "\ud800"}})
    with pytest.raises(CheckpointError, match="id2label has 1200000 bytes: expected at most 1048576"):
        read_labels({"id2label": {str(index): "x" * 300 for index in range(4000)}})


def _sources(fields: dict[str, Any], **options: Any) -> Sources:
    return Sources(
        layout=Layout(),
        options=PoolerOptions(**options),
        fields=fields,
        tasks=(PoolingTask.EMBED,),
        hidden_size=64,
        default_pooling=PoolingType.LAST,
        attends_both_ways=False,
        head=TokenHead("lm_head.weight", (), is_difference=False),
        token_ids=(),
        pair_form=PairForm.SEGMENTS,
    )


def _facts(fields: dict[str, Any], **options: Any) -> PoolingFacts:
    return resolved(_sources(fields, **options)).facts


def test_an_encoder_has_no_head_whose_tokens_are_labels() -> None:
    encoder = replace(_sources({}), head=TokenHead("", (), is_difference=False))
    for asked in (replace(encoder, token_ids=(3, 4)), replace(encoder, layout=Layout(tokens=(3,)))):
        with pytest.raises(UnsupportedModelError, match="an encoder without a language model's head"):
            resolved(asked)


def test_vectors_are_cut_to_no_more_than_the_numbers_they_have() -> None:
    trained = {"matryoshka_dimensions": [64, 16, 32]}
    assert _facts(trained).matryoshka_dimensions == (16, 32, 64)
    assert _facts(trained, dimensions=32).matryoshka_dimensions == (16, 32)
    for wrong in (65, 2**40):
        with pytest.raises(CheckpointError, match="is not usable: expected a list of numbers from 1 to 64"):
            _facts({"matryoshka_dimensions": [32, wrong]})
        with pytest.raises(UnsupportedModelError, match=f"matryoshka_dimensions of {wrong}: expected at most 64"):
            _facts({}, matryoshka_dimensions=(32, wrong))
