"""Offline scores of pairs that a model reads together, beside transformers."""

from __future__ import annotations

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
