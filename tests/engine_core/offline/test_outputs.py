"""Results have vLLM's names, and say what was computed and when."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_core.llm import LLM, RequestOutput, SamplingParams
from engine_core.logprobs import Logprobs
from engine_core.request import Finish, FinishReason
from text_core.tokenizer import Tokenizer

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "tiny"
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "kv_cache_memory_bytes": "16MiB"}
PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
QUICKSTART = """
prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)

llm = LLM(model="facebook/opt-125m")

outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
"""
"""vLLM's, without its import line."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TINY, max_num_queued_reqs=2, max_num_seqs=2, **OPTIONS) as started:
        yield started


def test_the_quickstart_of_vllm_runs_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its model is a directory here, which holds the bundled one."""
    (tmp_path / "facebook").mkdir()
    (tmp_path / "facebook" / "opt-125m").symlink_to(TINY)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("from engine_core.llm import LLM, SamplingParams\n" + QUICKSTART, names)
    names["llm"].close()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    for line, output in zip(lines, names["outputs"], strict=True):
        assert line == f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}"
        assert output.outputs[0].text == Tokenizer.from_directory(TINY).decode(output.outputs[0].token_ids)


def test_every_end_has_the_reason_that_vllm_gives(llm: LLM) -> None:
    [free] = llm.generate(PROMPT, replace(GREEDY, n=2))
    assert [output.index for output in free.outputs] == [0, 1]
    assert [output.finish_reason for output in free.outputs] == ["length", "length"]
    third = free.outputs[0].token_ids[2]
    eos = llm.model.eos_token_ids[0]
    by_eos = replace(GREEDY, logit_bias={eos: 100.0})
    for params, reason, stop_reason, stop in (
        (GREEDY, "length", None, None),
        (replace(GREEDY, stop="."), "stop", ".", "."),
        (replace(GREEDY, stop_token_ids=frozenset({third})), "stop", third, third),
        (by_eos, "stop", None, eos),
        (replace(by_eos, ignore_eos=True, stop_token_ids=frozenset({eos})), "stop", eos, eos),
    ):
        [result] = llm.generate(PROMPT, params)
        [output] = result.outputs
        assert (output.finish_reason, output.stop_reason, output.stop) == (reason, stop_reason, stop)
        assert output.finished()
        assert result.finished


def test_older_names_are_of_the_same_data(llm: LLM) -> None:
    llm.generate(PROMPT * 8, GREEDY)
    [result] = llm.generate(PROMPT * 8, GREEDY)
    assert result.choices is result.outputs
    assert result.cached_tokens == result.num_cached_tokens > 0
    assert result.outputs[0].finish == Finish(FinishReason.LENGTH)


def test_log_probabilities_are_read_by_token_id(llm: LLM) -> None:
    """The token that was drawn is there wherever it ranks, before the likeliest ones; the arrays are the engine's."""
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=40, logprobs=2, prompt_logprobs=1)
    [result] = llm.generate(PROMPT, params)
    [output] = result.outputs
    tokenizer = Tokenizer.from_directory(TINY)
    assert isinstance(output.logprobs, Logprobs)
    for token_id, entry in zip(output.token_ids, output.logprobs, strict=True):
        assert next(iter(entry)) == token_id
        assert list(entry) == list(dict.fromkeys([token_id, *entry.top_ids]))
        assert len(entry) == len(list(entry))
        assert (entry[token_id].logprob, entry[token_id].rank) == (entry.logprob, entry.rank)
        for rank, (top_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1):
            assert (entry[top_id].logprob, entry[top_id].rank) == (logprob, rank)
        for each, found in entry.items():
            assert found.decoded_token == tokenizer.token_bytes(each).decode(errors="replace")
        with pytest.raises(KeyError):
            entry[-1]
    assert {len(entry) for entry in output.logprobs} == {2, 3}
    assert "".join(each[token].decoded_token for each, token in zip(output.logprobs, output.token_ids, strict=True))
    assert output.logprobs[-1] == list(output.logprobs)[-1]
    assert output.logprobs[3:5][1] == output.logprobs[4]
    assert result.prompt_logprobs is not None
    for token_id, entry in zip(result.prompt_token_ids[1:], result.prompt_logprobs, strict=True):
        assert entry[token_id].logprob == entry.logprob


def test_the_cumulative_log_probability_is_the_exact_sum(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=64, ignore_eos=True)
    [without] = llm.generate(PROMPT, params)
    assert [output.cumulative_logprob for output in without.outputs] == [None, None]
    [result] = llm.generate(PROMPT, replace(params, logprobs=0))
    for output in result.outputs:
        assert output.logprobs is not None
        assert output.cumulative_logprob == math.fsum(entry.logprob for entry in output.logprobs) < 0
    [stopped] = llm.generate(PROMPT, replace(GREEDY, logprobs=0, stop="."))
    assert len(stopped.outputs[0].logprobs or ()) == len(stopped.outputs[0].token_ids)


def test_tokens_have_no_text_where_results_have_none(llm: LLM) -> None:
    ids = Tokenizer.from_directory(TINY).encode(PROMPT)
    [result] = llm.generate([ids], replace(GREEDY, logprobs=1))
    assert result.outputs[0].logprobs is not None
    entry = result.outputs[0].logprobs[0]
    assert entry[result.outputs[0].token_ids[0]].decoded_token is None
    assert result.outputs[0].text is None


def test_times_follow_a_request_through_the_engine(llm: LLM) -> None:
    """More prompts than may wait or run: some reach the engine, and its steps, only after others have ended."""
    before, wall = time.monotonic(), time.time()
    results = llm.generate([PROMPT] * 8, GREEDY)
    after, wall_after = time.monotonic(), time.time()
    metrics = [result.metrics for result in results if result.metrics is not None]
    assert len(metrics) == 8
    for each in metrics:
        assert wall <= each.arrival_time <= wall_after
        assert each.first_token_ts is not None
        assert each.last_token_ts is not None
        steps = [each.queued_ts, each.scheduled_ts, each.first_token_ts, each.last_token_ts, each.finished_ts]
        assert [before, each.arrival_ts, *steps, after] == sorted([before, each.arrival_ts, *steps, after])
        assert each.first_token_ts < each.last_token_ts
        assert each.queued_time == each.scheduled_ts - each.queued_ts
        assert each.first_token_latency == each.first_token_ts - each.arrival_ts
        assert each.e2e_latency == each.finished_ts - each.arrival_ts
    assert metrics[4].scheduled_ts >= metrics[0].finished_ts  # that of 2 may be planned while 0 computes its last token
    assert metrics[4].queued_ts >= metrics[0].finished_ts
    assert metrics[2].queued_ts < metrics[0].finished_ts


def test_results_of_equal_requests_are_equal_and_can_be_pickled(llm: LLM) -> None:
    params = replace(GREEDY, logprobs=2, prompt_logprobs=1)
    [first], [second] = llm.generate(PROMPT, params), llm.generate(PROMPT, params)
    assert first == second
    assert first.request_id != second.request_id
    copy: RequestOutput = pickle.loads(pickle.dumps(first))
    assert (copy, copy.metrics) == (first, first.metrics)
    assert copy.outputs[0].logprobs is not None
    assert copy.outputs[0].logprobs[1] == first.outputs[0].logprobs[1]
    [other] = llm.generate(PROMPT, replace(params, logprobs=3))
    assert first != other
