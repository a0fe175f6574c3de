"""Offline vectors, scores and labels: beside transformers, in vLLM's classes, with errors that name the prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config

from engine_core.errors import ClosedError, InvalidRequestError
from engine_core.llm import (
    LLM,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from engine_core.pooling.params import PoolingTask
from tests.engine_core.pooling.checkpoints import CONFIG, hidden_states, lay_out, random_model
from tests.text_core.word_tokenizers import WORDS, save

OPTIONS = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 4 << 20, "max_num_queued_reqs": 2}
TEXTS = ["w1 w2 w3", " ".join(WORDS[5:35]), "w9"]
QUERY, DOCUMENTS = "w1 w2", ["w3 w4 w5", " ".join(WORDS[8:30]), "w1"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Iterator[tuple[LLM, PreTrainedModel, PreTrainedTokenizerFast]]:
    """A decoder whose last hidden state is the vector, with prompts of its own."""
    directory = tmp_path_factory.mktemp("embedder")
    model = random_model(directory)
    lay_out(directory, prompts={"query": "w30 w31 ", "document": ""})
    fields = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {"matryoshka_dimensions": [16, 64]}))
    tokenizer = save(directory)
    with LLM(directory, **OPTIONS) as llm:
        yield llm, model, tokenizer


def vectors(embedder, texts: list[str], before: str = "") -> list[torch.Tensor]:
    _, model, tokenizer = embedder
    states = [hidden_states(model, tokenizer(before + text).input_ids)[-1] for text in texts]
    return [torch.nn.functional.normalize(each, dim=0) for each in states]


def of(results: list[EmbeddingRequestOutput]) -> torch.Tensor:
    return torch.tensor([each.outputs.embedding for each in results])


def test_vectors_are_those_of_transformers_in_the_order_of_the_prompts(embedder):
    llm, _, tokenizer = embedder
    ids = tokenizer(TEXTS[2]).input_ids
    results = llm.embed([TEXTS[0], {"prompt": TEXTS[1]}, ids])
    torch.testing.assert_close(of(results), torch.stack(vectors(embedder, TEXTS)), atol=2e-6, rtol=0)
    first = results[0]
    assert repr(first.outputs) == "EmbeddingOutput(hidden_size=64)"
    assert isinstance(first, EmbeddingRequestOutput)
    assert (first.prompt_token_ids, first.finished) == (tokenizer(TEXTS[0]).input_ids, True)
    assert first.outputs.hidden_size == 64
    assert first.outputs.data.tolist() == first.outputs.embedding
    assert llm.embed(TEXTS[1]) == [results[1]], "a result does not depend on the others"


def test_a_models_prompt_is_put_before_texts_and_not_before_ids(embedder):
    llm, _, tokenizer = embedder
    results = llm.embed([TEXTS[0], tokenizer(TEXTS[0]).input_ids], prompt_name="query")
    expected = [*vectors(embedder, TEXTS[:1], "w30 w31 "), *vectors(embedder, TEXTS[:1])]
    torch.testing.assert_close(of(results), torch.stack(expected), atol=2e-6, rtol=0)


def test_vectors_may_be_cut_and_left_as_long_as_they_are(embedder):
    llm, model, tokenizer = embedder
    states = torch.stack([hidden_states(model, tokenizer(text).input_ids)[-1] for text in TEXTS])
    as_they_are = of(llm.embed(TEXTS, PoolingParams(normalize=False)))
    torch.testing.assert_close(as_they_are, states, atol=1e-5, rtol=1e-5)
    assert of(llm.embed(TEXTS, PoolingParams(use_activation=False))).equal(as_they_are)
    short = of(llm.embed(TEXTS, PoolingParams(dimensions=16)))
    torch.testing.assert_close(short, torch.nn.functional.normalize(states[:, :16], dim=1), atol=2e-6, rtol=0)
    mixed = llm.embed(TEXTS[:2], [PoolingParams(dimensions=16), PoolingParams()])
    assert [each.outputs.hidden_size for each in mixed] == [16, 64]


def test_long_prompts_are_cut_at_their_ends_if_asked(embedder):
    llm, _, tokenizer = embedder
    long = " ".join(WORDS * 3)
    with pytest.raises(InvalidRequestError, match=r"prompts\[1\]: 122 tokens are too long: expected at most 64"):
        llm.embed(["w1", long])
    [cut] = llm.embed(long, PoolingParams(truncate_prompt_tokens=-1))
    assert cut.prompt_token_ids == tokenizer(long, truncation=True, max_length=64).input_ids
    params = [PoolingParams(truncate_prompt_tokens=5), PoolingParams(), PoolingParams(truncate_prompt_tokens=2)]
    results = llm.embed([long, "w1", [7, 8, 9]], params)
    lengths = [len(each.prompt_token_ids) for each in results]
    assert (lengths, results[2].prompt_token_ids) == ([5, 3, 2], [7, 8])


def test_each_token_may_have_a_vector(embedder):
    llm, model, tokenizer = embedder
    [result] = llm.encode(TEXTS[0], pooling_task="token_embed")
    states = hidden_states(model, tokenizer(TEXTS[0]).input_ids)
    torch.testing.assert_close(result.outputs.data, torch.nn.functional.normalize(states, dim=1), atol=2e-6, rtol=0)
    assert type(result) is PoolingRequestOutput
    by_params = llm.encode(TEXTS[0], PoolingParams(task="token_embed"))
    assert by_params == [result]
    assert llm.encode(TEXTS[:1]) == llm.embed(TEXTS[:1]), "by default, the model's first task"


def test_vectors_are_compared_by_their_cosine(embedder):
    llm, _, tokenizer = embedder
    [query], documents = vectors(embedder, [QUERY], "w30 w31 "), vectors(embedder, DOCUMENTS)
    results = llm.score(QUERY, DOCUMENTS)
    assert [each.outputs.score for each in results] == pytest.approx(
        [float(query @ each) for each in documents], abs=1e-6
    )
    assert isinstance(results[0], ScoringRequestOutput)
    both = tokenizer("w30 w31 " + QUERY).input_ids + tokenizer(DOCUMENTS[0]).input_ids
    assert results[0].prompt_token_ids == both
    pairs = llm.score([QUERY, "w7"], DOCUMENTS[:2])
    [other] = vectors(embedder, ["w7"], "w30 w31 ")
    assert pairs[0] == results[0]
    assert pairs[1].outputs.score == pytest.approx(float(other @ documents[1]), abs=1e-6)
    of_ids = llm.score([1, 2, 3], [[1, 2, 3], [5, 6]])
    assert of_ids[0].outputs.score == pytest.approx(1.0)


def test_vectors_are_compared_as_the_checkpoint_says(tmp_path):
    model = random_model(tmp_path)
    lay_out(tmp_path, normalize=False, similarity_fn_name="dot")
    tokenizer = save(tmp_path)
    with LLM(tmp_path, **OPTIONS) as llm:
        found = [each.outputs.score for each in llm.score(QUERY, DOCUMENTS)]
    [query, *others] = (hidden_states(model, tokenizer(text).input_ids)[-1] for text in (QUERY, *DOCUMENTS))
    assert found == pytest.approx([float(query @ each) for each in others], rel=1e-4)


@torch.no_grad()
def test_labels_are_those_of_transformers(tmp_path):
    labels = {0: "calm", 1: "glad", 2: "sad"}
    config = Qwen3Config(**CONFIG.to_dict() | {"id2label": labels, "pad_token_id": 0})
    model, tokenizer = random_model(tmp_path, "Qwen3ForSequenceClassification", config), save(tmp_path)
    logits = torch.cat([model(torch.tensor([tokenizer(text).input_ids])).logits for text in TEXTS])
    with LLM(tmp_path, **OPTIONS) as llm:
        results = llm.classify(TEXTS)
        found = torch.tensor([each.outputs.probs for each in results])
        torch.testing.assert_close(found, logits.softmax(1), atol=2e-6, rtol=0)
        assert isinstance(results[0], ClassificationRequestOutput)
        assert (llm.model.pooling.labels, results[0].outputs.num_classes) == (("calm", "glad", "sad"), 3)
        assert llm.reward(TEXTS) == results
        with pytest.raises(InvalidRequestError, match=r"scores no pairs; expected one that has one label \(it has 3\)"):
            llm.score(QUERY, DOCUMENTS)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda llm: llm.embed(["w1", ""]), r"prompts\[1\] is empty; expected text"),
        (lambda llm: llm.embed([[5], []]), r"prompts\[1\]: is empty; expected at least one token"),
        (lambda llm: llm.embed([[5], [5, 9999]]), r"prompts\[1\]: .*9999"),
        (lambda llm: llm.embed("w1", PoolingParams(dimensions=8)), "pooling_params: dimensions: is 8; expected one of"),
        (lambda llm: llm.embed("w1", prompt_name="passage"), "is 'passage'; expected 'document' or 'query'"),
        (lambda llm: llm.embed("w1", PoolingParams(truncate_prompt_tokens=65)), "truncate_prompt_tokens: is 65"),
        (lambda llm: llm.embed("w1", PoolingParams(truncate_prompt_tokens=True)), "truncate_prompt_tokens: is True"),
        (lambda llm: llm.embed("w1", PoolingParams(task="classify")), "task: is classify; expected None or embed"),
        (lambda llm: llm.embed("w1", PoolingParams(normalize=True, use_activation=False)), ": is not what"),
        (lambda llm: llm.encode("w1", pooling_task="score"), "is 'score'; expected one of embed, token_embed,"),
        (lambda llm: llm.classify("w1"), "has no task classify; expected one of embed, token_embed"),
        (lambda llm: llm.score("w1", ["w2"], instruction="Match."), "instruction: has no place"),
        (lambda llm: llm.score(["w1", "w2"], ["w3"]), "data_1 has 2 texts, data_2 has 1; expected one in data_1"),
        (lambda llm: llm.score("w1", ["w2", ""]), r"data_2\[1\] is empty"),
        (lambda llm: llm.embed(["w1"], [PoolingParams()] * 2), "pooling_params is 2, that of prompts is 1"),
        (lambda llm: llm.generate("w1"), "generates no tokens"),
        (lambda llm: llm.chat([{"role": "user", "content": "w1"}]), "messages: .* generates no tokens; ask it for"),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_before_any_step(embedder, call, problem):
    llm = embedder[0]
    steps = llm.stats().steps
    with pytest.raises(ValueError, match=problem):
        call(llm)
    assert llm.stats().steps == steps


def test_what_is_of_a_wrong_type(embedder):
    llm = embedder[0]
    with pytest.raises(TypeError, match="pooling_params is of type int; expected PoolingParams, or a list"):
        llm.embed("w1", 5)
    with pytest.raises(TypeError, match=r"pooling_params\[0\] is of type dict"):
        llm.embed(["w1"], [{}])
    with pytest.raises(TypeError, match="'skip_reading_prefix_cache' is not supported: cached prefixes"):
        PoolingParams(skip_reading_prefix_cache=True)
    with pytest.raises(TypeError, match="data_2 is None; expected text"):
        llm.score("w1", None)


class Words:
    """A caller's tokenizer."""

    def encode(self, text: str) -> list[int]:
        return [int(word[1:]) + 8 for word in text.split()]

    def decode(self, token_ids) -> str:
        return " ".join(f"w{each - 8}" for each in token_ids)


def test_a_callers_tokenizer_makes_vectors(embedder):
    directory = embedder[0]._config.model.model
    with LLM(directory, tokenizer=Words(), **OPTIONS) as llm:
        [result] = llm.embed("w1 w2", PoolingParams(truncate_prompt_tokens=3), prompt_name="query")
        assert result.prompt_token_ids == [38, 39, 9]


def test_a_model_that_generates_says_so():
    tiny = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny"
    with LLM(tiny, **OPTIONS) as llm:
        for call in (llm.embed, llm.classify, llm.encode, llm.reward):
            with pytest.raises(InvalidRequestError, match="generates text; expected a model that pools, or runner="):
                call("Hi")


def test_a_result_that_is_no_number_names_its_prompt(embedder, monkeypatch):
    llm = embedder[0]
    core = llm._engine.core

    def step():
        outputs = real()
        for output in outputs:
            if output.finish is not None and output.request_id.endswith(worst[0]):
                output.pooled = None
        return outputs

    real, worst = core.step, [f"-{next(llm._request_ids) + 2}"]
    monkeypatch.setattr(core, "step", step)
    with pytest.raises(InvalidRequestError, match=r"prompts\[1\]: "):
        llm.embed(["w1", "w2", "w3"])
    monkeypatch.undo()
    assert len(llm.embed(["w1", "w2", "w3"])) == 3


def test_calls_of_several_threads_and_a_closed_one(tmp_path):
    random_model(tmp_path)
    lay_out(tmp_path)
    prompts = [[[number + 3] * (number + 1)] * 3 for number in range(4)]
    with LLM(tmp_path, **OPTIONS) as llm:
        expected = [llm.embed(each) for each in prompts]
        found: dict[int, list[EmbeddingRequestOutput]] = {}
        threads = [
            threading.Thread(target=lambda place: found.update({place: llm.embed(prompts[place])}), args=(place,))
            for place in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[place] for place in range(4)] == expected
    with pytest.raises(ClosedError):
        llm.embed([[1]])


def test_tasks_have_vllms_names():
    assert {task.value for task in PoolingTask} == {"embed", "token_embed", "classify", "token_classify"}
