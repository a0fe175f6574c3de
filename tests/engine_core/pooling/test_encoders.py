"""Encoders that pool in an engine, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from engine_core.errors import ConfigError, UnsupportedModelError
from engine_core.pooling.params import PoolingParams, PoolingTask
from tests.engine_core.engines import started
from tests.engine_core.models.driver import open_at
from tests.engine_core.models.encoders import CASES, save

from .checkpoints import lay_out, pooled, texts

INPUTS = texts([1, 5, 40, 200, 17, 48])
LABELS = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}, "label2id": {"no": 0, "perhaps": 1, "yes": 2}}
RAW = PoolingParams(PoolingTask.CLASSIFY, activation=False)
OF_TOKENS = PoolingParams(PoolingTask.TOKEN_CLASSIFY, activation=False)
SEQUENCES = {
    "bert": "BertForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
    "electra-narrow": "ElectraForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
    "modernbert-biases-masked-lm": "ModernBertForSequenceClassification",
    "nomic-bert": "NomicBertForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
}
QUICK = ("bert", "electra-narrow", "modernbert-biases-masked-lm", "xlm-roberta")
"""The others take long."""
TOKENS = {"bert": "BertForTokenClassification", "modernbert": "ModernBertForTokenClassification"}


def saved(case: str, directory: Path, architecture: str = "", **fields: Any) -> PreTrainedModel:
    """The model of a case, with another class and other fields, saved."""
    own, config = CASES[case]
    kind = getattr(transformers, architecture or own)
    return save(kind, type(config)(**(config.to_dict() | fields)), directory)


@torch.no_grad()
def logits(model: PreTrainedModel, tokens: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.atleast_2d(model(torch.tensor([list(tokens)])).logits[0].numpy())


@pytest.mark.parametrize(
    ("case", "mode"), [("bert", "mean"), ("modernbert", "cls"), ("gemma3-encoder", "mean"), ("distilbert", "mean")]
)
def test_vectors(case: str, mode: str, tmp_path: Path) -> None:
    model = saved(case, tmp_path)
    name = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[mode]
    lay_out(tmp_path, {name: True})
    with started(tmp_path) as engine:
        found = pooled(engine, INPUTS)
        alone = [pooled(engine, [tokens])[0] for tokens in INPUTS]
        assert engine.core.has_work() is False
    for tokens, values, by_itself in zip(INPUTS, found, alone, strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([list(tokens)])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden.mean(0) if mode == "mean" else hidden[0], dim=0)
        np.testing.assert_allclose(values[0], expected.numpy(), atol=3e-6)
        np.testing.assert_array_equal(values, by_itself)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in QUICK else pytest.mark.models) for case in SEQUENCES]
)
def test_labels_of_inputs(case: str, tmp_path: Path) -> None:
    fields = LABELS | ({"classifier_pooling": "mean", "classifier_bias": True} if "biases" in case else {})
    model = saved(case, tmp_path, SEQUENCES[case], **fields)
    with started(tmp_path) as engine:
        found = pooled(engine, INPUTS, RAW)
        alone = pooled(engine, INPUTS[3:4], RAW)
    for tokens, values in zip(INPUTS, found, strict=True):
        np.testing.assert_allclose(values, logits(model, tokens), atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(found[3], alone[0])


def test_a_cross_encoder_has_the_activation_with_which_it_was_saved(tmp_path: Path) -> None:
    model = saved("bert", tmp_path, SEQUENCES["bert"], id2label={0: "score"})
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Transformer", "path": ""}]')
    fields = {"activation_fn": "torch.nn.modules.linear.Identity", "model_type": "CrossEncoder", "prompts": {}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(fields))
    with started(tmp_path) as engine:
        [values] = pooled(engine, INPUTS[2:3], PoolingParams(PoolingTask.CLASSIFY))
    np.testing.assert_allclose(values, logits(model, INPUTS[2]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", TOKENS)
def test_labels_of_tokens(case: str, tmp_path: Path) -> None:
    model = saved(case, tmp_path, TOKENS[case], **LABELS)
    with started(tmp_path) as engine:
        found = pooled(engine, INPUTS, OF_TOKENS)
    for tokens, values in zip(INPUTS, found, strict=True):
        np.testing.assert_allclose(values, logits(model, tokens), atol=1e-5, rtol=1e-5)


def test_a_step_that_is_shorter_than_the_longest_input_is_refused(tmp_path: Path) -> None:
    saved("bert", tmp_path)
    with pytest.raises(ConfigError, match="at least --max-model-len"), started(tmp_path, max_num_batched_tokens=100):
        pass


def test_an_encoder_generates_nothing(tmp_path: Path) -> None:
    saved("bert", tmp_path)
    with pytest.raises(UnsupportedModelError, match="it is an encoder"):
        open_at(tmp_path, runner="generate")
