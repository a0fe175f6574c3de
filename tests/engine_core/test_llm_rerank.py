"""Offline scores of pairs that a model reads together, beside transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerFast

from engine_core.errors import InvalidRequestError
from engine_core.llm import LLM, PoolingParams
from tests.engine_core.pooling.checkpoints import random_model
from tests.engine_core.test_llm_pooling import DOCUMENTS, OPTIONS, QUERY, Words
from tests.text_core.word_tokenizers import WORDS, save

_SIZES = {"vocab_size": 199, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2}
BERT = BertConfig(
    **_SIZES, num_attention_heads=4, max_position_embeddings=64, initializer_range=0.5, id2label={0: "score"}
)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory) -> Iterator[tuple[LLM, PreTrainedModel, PreTrainedTokenizerFast]]:
    """An encoder with one label, which reads pairs."""
    directory = tmp_path_factory.mktemp("reranker")
    model = random_model(directory, "BertForSequenceClassification", BERT)
    tokenizer = save(directory)
    with LLM(directory, **OPTIONS) as llm:
        yield llm, model, tokenizer


@torch.no_grad()
def test_pairs_are_scored_as_transformers_scores_them(reranker):
    llm, model, tokenizer = reranker
    results = llm.score(QUERY, DOCUMENTS)
    batch = tokenizer([QUERY] * 3, DOCUMENTS, padding=True, return_tensors="pt", return_token_type_ids=True)
    logits = model(**batch).logits[:, 0]
    found = torch.tensor([each.outputs.score for each in results])
    torch.testing.assert_close(found, logits.sigmoid(), atol=1e-5, rtol=0)
    assert results[0].prompt_token_ids == tokenizer(QUERY, DOCUMENTS[0]).input_ids
    raw = [each.outputs.score for each in llm.score(QUERY, DOCUMENTS, PoolingParams(use_activation=False))]
    torch.testing.assert_close(torch.tensor(raw), logits, atol=5e-5, rtol=1e-5)
    assert llm.score([QUERY] * 3, DOCUMENTS) == results
    [cut] = llm.score(QUERY, " ".join(WORDS * 3), PoolingParams(truncate_prompt_tokens=20))
    expected = tokenizer(QUERY, " ".join(WORDS * 3), truncation="only_second", max_length=20)
    assert cut.prompt_token_ids == expected.input_ids


def test_ids_of_a_reranker_are_refused(reranker):
    with pytest.raises(InvalidRequestError, match=r"data_2\[1\]: is token ids; expected text, as this model reads two"):
        reranker[0].score("w1", ["w2", [5, 6]])
    with pytest.raises(InvalidRequestError, match="normalize: is for vectors; expected None for classify"):
        reranker[0].score("w1", ["w2"], PoolingParams(normalize=True))


def test_a_callers_tokenizer_makes_no_pairs(reranker):
    problem = "a pair of texts needs the model's own tokenizer"
    with (
        LLM(reranker[0]._config.model.model, tokenizer=Words(), **OPTIONS) as llm,
        pytest.raises(InvalidRequestError, match=problem),
    ):
        llm.score("w1", ["w2"])


@torch.no_grad()
def test_a_layout_says_how_pairs_are_shown_and_scored(tmp_path):
    """Sentence-transformers' LogitScore: the pair's own template, its default prompt, two tokens, its activation."""
    tokenizer = save(tmp_path)
    tokenizer.chat_template = "{% for each in messages %}<{{ each.role }}> {{ each.content }} {% endfor %}<answer>"
    tokenizer.save_pretrained(tmp_path)
    model = random_model(tmp_path, "Qwen3ForCausalLM")
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "Transformer"}, {"type": "LogitScore", "path": "1"}]))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.json").write_text(json.dumps({"true_token_id": 11, "false_token_id": 7}))
    general = {
        "activation_fn": "torch.nn.modules.linear.Identity",
        "prompts": {"find": "w7"},
        "default_prompt_name": "find",
    }
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(general))
    with LLM(tmp_path, **OPTIONS) as llm:
        found = {text: llm.score(QUERY, DOCUMENTS[0], instruction=text)[0] for text in ("", "w9")}
    for text, result in found.items():
        roles = {"system": text or "w7", "query": QUERY, "document": DOCUMENTS[0]}
        messages = [{"role": role, "content": content} for role, content in roles.items()]
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert result.prompt_token_ids == ids
        logits = model(torch.tensor([ids])).logits[0, -1]
        assert result.outputs.score == pytest.approx(float(logits[11] - logits[7]), abs=1e-4)
