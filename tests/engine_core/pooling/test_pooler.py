"""Decoders that pool, beside transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, GraniteConfig, LlamaConfig, Qwen2Config, Qwen3Config

from engine_core.errors import UnsupportedModelError
from engine_core.pooling.config import DENSE_ACTIVATIONS
from engine_core.pooling.facts import PairForm
from engine_core.pooling.params import PoolingParams, PoolingTask
from tests.engine_core.engines import started
from tests.engine_core.models.tiny_models import SIZES

from .checkpoints import CONFIG, hidden_states, lay_out, pooled, random_model, texts

INPUTS = texts([1, 5, 40, 200])
RAW = PoolingParams(PoolingTask.EMBED)
CLASSIFY = PoolingParams(PoolingTask.CLASSIFY)
CHUNKS = {"max_num_batched_tokens": 48}
Pool = Callable[[torch.Tensor], torch.Tensor]


def weighted_mean(hidden: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1.0, len(hidden) + 1)[:, None]
    return (hidden * weights).sum(0) / weights.sum()


POOLINGS: dict[str, Pool] = {
    "lasttoken": lambda hidden: hidden[-1],
    "cls": lambda hidden: hidden[0],
    "mean": lambda hidden: hidden.mean(0),
    "max": lambda hidden: hidden.amax(0),
    "mean_sqrt_len_tokens": lambda hidden: hidden.sum(0) / len(hidden) ** 0.5,
    "weightedmean": weighted_mean,
}


def quick(names: Iterable[str], *chosen: str) -> list[object]:
    """The others are in ``make test-models``."""
    return [pytest.param(name, marks=[] if name in chosen else pytest.mark.models) for name in names]


@pytest.mark.parametrize("mode", quick(POOLINGS, "mean"))
def test_hidden_states_are_pooled_in_chunks_as_the_layout_says(mode: str, tmp_path: Path) -> None:
    model = random_model(tmp_path)
    lay_out(tmp_path, {"pooling_mode": mode}, normalize=False)
    with started(tmp_path, **CHUNKS) as engine:
        found = pooled(engine, INPUTS, RAW)
        tokens = pooled(engine, INPUTS, PoolingParams(PoolingTask.TOKEN_EMBED))
    for each, values, of_tokens in zip(INPUTS, found, tokens, strict=True):
        hidden = hidden_states(model, each)
        np.testing.assert_allclose(values[0], POOLINGS[mode](hidden).numpy(), atol=2e-5)
        np.testing.assert_allclose(of_tokens, hidden.numpy(), atol=2e-5)


@pytest.mark.parametrize("activation", quick(DENSE_ACTIVATIONS, "Tanh"))
def test_dense_layers_follow_and_vectors_are_cut_before_they_are_scaled(activation: str, tmp_path: Path) -> None:
    model = random_model(tmp_path)
    dense = [torch.nn.Linear(64, 100), torch.nn.Linear(100, 24, bias=False)]
    kind = getattr(torch.nn, activation)
    lay_out(tmp_path, {"pooling_mode_mean_tokens": True}, dense, activation=f"{kind.__module__}.{activation}")
    options = {"matryoshka_dimensions": [8, 24]}
    with started(tmp_path, pooler_config=options) as engine:
        facts = engine.core.model.pooling
        assert facts is not None
        assert (facts.dimensions, facts.matryoshka_dimensions, facts.normalizes) == (24, (8, 24), True)
        whole, cut = pooled(engine, INPUTS), pooled(engine, INPUTS, PoolingParams(PoolingTask.EMBED, 8, normalize=True))
    for each, values, of_8 in zip(INPUTS, whole, cut, strict=True):
        with torch.no_grad():
            vector = hidden_states(model, each).mean(0)
            for layer in dense:
                vector = kind()(layer(vector))
        for found in (values[0], of_8[0]):
            expected = torch.nn.functional.normalize(vector[: len(found)], dim=0)
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_a_layout_may_cut_vectors(tmp_path: Path) -> None:
    """Requests may ask for fewer numbers, but not for more."""
    model = random_model(tmp_path)
    lay_out(tmp_path, {"pooling_mode_mean_tokens": True}, truncate_dim=24)
    with started(tmp_path) as engine:
        facts = engine.core.model.pooling
        assert facts is not None
        assert (facts.dimensions, facts.is_matryoshka) == (24, True)
        [values] = pooled(engine, INPUTS[2:3])
    expected = torch.nn.functional.normalize(hidden_states(model, INPUTS[2]).mean(0)[:24], dim=0)
    np.testing.assert_allclose(values[0], expected.numpy(), atol=2e-5)


FAMILIES = {
    "LlamaForSequenceClassification": LlamaConfig(**SIZES, num_labels=3),
    "Qwen2ForSequenceClassification": Qwen2Config(**SIZES, num_labels=1),
    "Qwen3ForSequenceClassification": Qwen3Config(
        **SIZES, head_dim=32, num_labels=4, problem_type="multi_label_classification"
    ),
    "Qwen3ForTokenClassification": Qwen3Config(**SIZES, head_dim=32, id2label={0: "O", 1: "B", 2: "I"}),
}


@pytest.mark.parametrize("kind", quick(FAMILIES, "Qwen2ForSequenceClassification", "Qwen3ForTokenClassification"))
def test_classifiers_have_the_numbers_of_transformers(kind: str, tmp_path: Path) -> None:
    model = random_model(tmp_path, kind, FAMILIES[kind])
    per_token = kind.endswith("ForTokenClassification")
    task = PoolingTask.TOKEN_CLASSIFY if per_token else PoolingTask.CLASSIFY
    with started(tmp_path, **CHUNKS) as engine:
        facts = engine.core.model.pooling
        assert facts is not None
        assert facts.tasks == (task,)
        found = pooled(engine, INPUTS, PoolingParams(task))
        raw = pooled(engine, INPUTS, PoolingParams(task, activation=False))
    assert facts.labels == tuple(model.config.id2label[place] for place in range(len(facts.labels)))
    assert (facts.pair_form is not None) == (len(facts.labels) == 1)
    for each, values, numbers in zip(INPUTS, found, raw, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([each])).logits.view(-1, len(facts.labels))
        softmax = len(facts.labels) == 3
        np.testing.assert_allclose(numbers, logits.numpy(), atol=2e-5)
        np.testing.assert_allclose(values, (logits.softmax(-1) if softmax else logits.sigmoid()).numpy(), atol=2e-6)


@pytest.mark.parametrize("is_tied", [pytest.param(True, marks=pytest.mark.models), False])
def test_a_reranker_scores_by_two_tokens_of_its_head(is_tied: bool, tmp_path: Path) -> None:
    config = Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=is_tied)
    model = random_model(tmp_path, "Qwen3ForCausalLM", config)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"no": 7, "yes": 11}}}))
    with started(tmp_path, pooler_config={"classifier_from_token": ["no", "yes"]}) as engine:
        facts = engine.core.model.pooling
        found, raw = (pooled(engine, INPUTS, PoolingParams(PoolingTask.CLASSIFY, activation=a)) for a in (True, False))
    assert facts is not None
    assert (facts.labels, facts.pair_form, facts.tasks) == (("yes",), PairForm.TEMPLATE, (PoolingTask.CLASSIFY,))
    for each, values, numbers in zip(INPUTS, found, raw, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([each])).logits[0, -1]
        np.testing.assert_allclose(numbers, [[logits[11] - logits[7]]], atol=2e-5)
        np.testing.assert_allclose(values, [[logits[[7, 11]].softmax(0)[1]]], atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Gemma2ForCausalLM", Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=3.0)),
        ("GraniteForCausalLM", GraniteConfig(**SIZES, logits_scaling=5.0)),
    ],
)
def test_scores_by_tokens_are_scaled_and_capped_as_the_head_does(kind: str, config: Any, tmp_path: Path) -> None:
    model = random_model(tmp_path, kind, config)
    with started(tmp_path, pooler_config={"classifier_from_token": [7, 11]}) as engine:
        raw = pooled(engine, INPUTS, PoolingParams(PoolingTask.CLASSIFY, activation=False))
    for each, numbers in zip(INPUTS, raw, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([each])).logits[0, -1]
        np.testing.assert_allclose(numbers, [[logits[11] - logits[7]]], atol=2e-5)


def test_a_checkpoint_says_what_becomes_of_scores_by_tokens(tmp_path: Path) -> None:
    activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
    random_model(tmp_path, "Qwen3ForCausalLM", CONFIG)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sentence_transformers": activation}))
    with started(tmp_path, pooler_config={"classifier_from_token": [7, 11]}) as engine:
        found, raw = (pooled(engine, INPUTS, PoolingParams(PoolingTask.CLASSIFY, activation=a)) for a in (True, False))
    assert np.array_equal(found, raw)


def test_a_language_model_embeds_where_that_is_asked_for(tmp_path: Path) -> None:
    """Its head, which is not tied, is left out; and of several tokens, each is a label."""
    config = Qwen2Config(**SIZES)
    model = random_model(tmp_path, "Qwen2ForCausalLM", config)
    with started(tmp_path, runner="pooling", pooler_config={"pooling_type": "MEAN", "normalize": False}) as engine:
        vectors = pooled(engine, INPUTS, RAW)
    with started(tmp_path, pooler_config={"classifier_from_token": [5, 9, 3]}) as engine:
        labels = pooled(engine, INPUTS, CLASSIFY)
    for each, values, shares in zip(INPUTS, vectors, labels, strict=True):
        np.testing.assert_allclose(values[0], hidden_states(model.model, each).mean(0).numpy(), atol=2e-5)
        with torch.no_grad():
            logits = model(torch.tensor([each])).logits[0, -1]
        np.testing.assert_allclose(shares[0], logits[[5, 9, 3]].softmax(0).numpy(), atol=2e-6)
    with started(tmp_path) as engine:
        assert engine.core.model.pooling is None


def test_a_model_that_pools_is_another_for_every_way_to_pool(tmp_path: Path) -> None:
    random_model(tmp_path)
    dense = torch.nn.Linear(64, 8)
    digests = list[str]()
    for options in ({}, {"pooling_type": "MEAN"}, {"normalize": False}):
        lay_out(tmp_path, None, [dense])
        with started(tmp_path, pooler_config=options) as engine:
            digests.append(engine.executor.model_digest)
    lay_out(tmp_path, None, [torch.nn.Linear(64, 8)])
    with started(tmp_path) as engine:
        digests.append(engine.executor.model_digest)
    assert len(set(digests)) == len(digests)


def test_a_class_without_its_own_model_is_refused(tmp_path: Path) -> None:
    random_model(tmp_path, "Qwen3ForSequenceClassification", CONFIG)
    with (
        pytest.raises(UnsupportedModelError, match="transformers' module"),
        started(tmp_path, model_impl="transformers"),
    ):
        pass
