"""Offline use: options by name, results in order, log probabilities, errors that leave the engine usable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine_core.errors import CheckpointError, ConfigError, InvalidRequestError
from engine_core.llm import LLM, configure
from engine_core.models.decoder import DecoderForCausalLM
from engine_core.progress import Stage, StartupProgress
from engine_core.request import FinishCause, SamplingParams

from .models.tiny_models import CASES, make_model, save_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
TINY = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny"
PROMPTS = [[5, 6, 7], [9] * 20, [100, 101]]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make_model(CASES["llama-gqa"])


@pytest.fixture(scope="module")
def checkpoint(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model.generation_config.temperature = 0.7
    model.generation_config.top_k = 0
    model.generation_config.do_sample = True
    return save_model(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    options = {"dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, "max_num_queued_reqs": 2}
    with LLM(str(checkpoint), **options) as started:
        yield started


def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": count, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, eos_token_id=None, **options)[0, len(prompt) :].tolist()


def test_logits_of_a_greedy_batch_are_never_written(
    llm: LLM, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, rows = DecoderForCausalLM.compute_logits, []

    def noting(model: DecoderForCausalLM, hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return compute(model, hidden)

    monkeypatch.setattr(DecoderForCausalLM, "compute_logits", noting)
    for prompt, result in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
        assert result.choices[0].token_ids == greedy(model, prompt, 8)
    assert not rows
    beside = llm.generate(PROMPTS[:2], [GREEDY, replace(GREEDY, temperature=1.0)])[0]
    assert 2 in rows
    assert beside.choices[0].token_ids == greedy(model, PROMPTS[0], 8)


def test_results_are_in_the_order_of_the_prompts(llm: LLM, model: PreTrainedModel) -> None:
    """More prompts than may wait at a time, of different lengths, each with parameters of its own."""
    prompts = PROMPTS * 4
    params = [replace(GREEDY, max_tokens=1 + i) for i in range(len(prompts))]
    results = llm.generate(prompts, params)
    for prompt, one, result in zip(prompts, params, results, strict=True):
        assert result.prompt_token_ids == prompt
        [choice] = result.choices
        assert choice.token_ids == greedy(model, prompt, one.max_tokens)
        assert choice.finish is not None
        assert choice.finish.cause is FinishCause.LENGTH


def test_choices_differ_and_repeat_with_their_seed(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=8, n=3, max_tokens=10, ignore_eos=True)
    first, second = (llm.generate([PROMPTS[0]], params)[0] for _ in range(2))
    streams = [choice.token_ids for choice in first.choices]
    assert streams == [choice.token_ids for choice in second.choices]
    assert len(set(map(tuple, streams))) == 3
    other = llm.generate([PROMPTS[0]], replace(params, seed=9))[0]
    assert other.choices[0].token_ids != streams[0]


@pytest.mark.parametrize("prompts", ["Once upon a time", ["Once upon a time"], [1, 2, 3]])
def test_what_are_no_lists_of_ids_is_refused_with_what_to_do(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompts: .* is not a list of token ids: expected"):
        llm.generate(prompts, GREEDY)


@torch.inference_mode()
def test_logprobs_of_output_and_prompt_equal_transformers(llm: LLM, model: PreTrainedModel) -> None:
    prompt = [50 + i for i in range(30)]
    params = replace(GREEDY, logprobs=3, prompt_logprobs=2, logit_bias={7: 5.0}, repetition_penalty=1.5)
    [result] = llm.generate([prompt], params)
    tokens = result.choices[0].token_ids
    assert result.prompt_logprobs is not None
    entries = [*result.prompt_logprobs, *result.choices[0].logprobs]
    expected = model(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
    assert len(entries) == len(prompt) + len(tokens) - 1
    for position, entry in enumerate(entries):
        row = expected[position]
        top = row.topk(3 if position >= len(prompt) - 1 else 2)
        assert entry.top_ids == tuple(top.indices.tolist())
        assert entry.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-4)
        token = (prompt + tokens)[position + 1]
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert entry.rank == int((row > row[token]).sum()) + 1


def test_prompt_logprobs_do_not_depend_on_chunks(llm: LLM, checkpoint: Path) -> None:
    prompt = [3 + i * 7 % 190 for i in range(90)]
    params = replace(GREEDY, prompt_logprobs=3)
    options = {"dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": 4 << 20}
    with LLM(str(checkpoint), max_num_batched_tokens=13, **options) as chunked:
        assert (
            chunked.generate([prompt], params)[0].prompt_logprobs == llm.generate([prompt], params)[0].prompt_logprobs
        )
        assert chunked.numerics == llm.numerics


def test_results_do_not_depend_on_overlapping_steps() -> None:
    """Whole results of the bundled model: tokens, ends, log probabilities, of prompts too; also under preemption."""
    prompts = [[3 + (i * 37 + j * j) % 400 for j in range(1 + i * 5 % 40)] for i in range(24)]
    params = [
        SamplingParams(
            temperature=[0.0, 0.7, 1.2][i % 3],
            top_p=[1.0, 0.9][i % 2],
            top_k=[None, 50][i % 5 == 0],
            frequency_penalty=[0.0, 0.8][i % 4 == 1],
            bad_words_token_ids=((5,), (9, 8)) if i % 6 == 2 else (),
            min_tokens=[0, 5][i % 7 == 3],
            max_tokens=1 + i * 3 % 40,
            logprobs=[None, 2][i % 4 == 3],
            prompt_logprobs=[None, 1][i % 8 == 3],
            n=1 + i % 3,
            seed=i,
        )
        for i in range(len(prompts))
    ]
    options = {"dtype": "float32", "kv_cache_memory_bytes": 64 << 20, "max_model_len": 128}
    with LLM(str(TINY), **options) as plain:
        expected = plain.generate(prompts, params)
    for limits in ({}, {"kv_cache_memory_bytes": 700 << 10, "block_size": 4, "max_num_batched_tokens": 64}):
        with LLM(str(TINY), async_scheduling=True, **(options | limits)) as overlapped:
            results = overlapped.generate(prompts, params)
            assert [(r.choices, r.prompt_logprobs) for r in results] == [
                (r.choices, r.prompt_logprobs) for r in expected
            ]
            assert bool(overlapped.stats().preemptions) == bool(limits)
            tokens = sum(len(choice.token_ids) for result in results for choice in result.choices)
            assert overlapped.stats().generated_tokens == tokens


def test_eos_ends_a_choice(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={2: 100.0}, min_tokens=3)
    [result] = llm.generate([PROMPTS[0]], params)
    [choice] = result.choices
    assert len(choice.token_ids) == 4
    assert choice.token_ids[-1] == 2
    assert 2 not in choice.token_ids[:-1]
    assert choice.finish is not None
    assert (choice.finish.cause, choice.finish.stop_token_id) == (FinishCause.STOP, 2)


def test_without_params_the_checkpoint_decides(llm: LLM) -> None:
    """Its generation_config.json asks for a temperature of 0.7, and for no top-k by its 0."""
    expected = llm.generate([PROMPTS[0]], SamplingParams(temperature=0.7))
    assert llm.generate([PROMPTS[0]])[0].choices[0].token_ids == expected[0].choices[0].token_ids


def test_a_refused_prompt_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prompt_token_ids"):
        llm.generate([*PROMPTS, [500]], GREEDY)
    with pytest.raises(ValueError, match="2 params for 3 prompts"):
        llm.generate(PROMPTS, [GREEDY] * 2)
    stats = llm.stats()
    assert (stats.running_seqs, stats.waiting_seqs, stats.kv_blocks_used) == (0, 0, 0)
    assert len(llm.generate(PROMPTS, GREEDY)) == 3


def test_stages_are_told_with_seconds_and_bytes(checkpoint: Path) -> None:
    told: list[Stage] = []
    advanced: list[tuple[str, int, int]] = []

    class Observer:
        def stage_started(self, stage: Stage) -> None:
            assert stage.seconds is None

        def stage_advanced(self, stage: Stage, done: int, total: int) -> None:
            advanced.append((stage.name, done, total))

        def stage_finished(self, stage: Stage) -> None:
            told.append(stage)

    LLM(str(checkpoint), progress=StartupProgress(Observer()), max_num_batched_tokens=32, dtype="bfloat16").close()
    names = ["configuration", "device", "load weights", "profile", "allocate KV cache", "warm up", "serving"]
    assert [stage.name for stage in told] == names
    assert all(stage.seconds is not None for stage in told)
    by_name = {stage.name: stage for stage in told}
    assert all(by_name[name].bytes for name in ("device", "load weights", "allocate KV cache"))
    assert by_name["profile"].bytes is not None  # 0 where the step finds memory that earlier ones left
    assert advanced[-1][0] == "load weights"
    assert advanced[-1][1] == advanced[-1][2] > 0


def test_an_unknown_option_lists_what_may_have_been_meant() -> None:
    with pytest.raises(ConfigError, match=r"max_model_length=5 .* did you mean max_model_len"):
        configure(model="m", max_model_length=5)
    with pytest.raises(ConfigError, match=r"something else\?"):
        configure(model="m", xyzzy=1)


def test_options_reach_their_sections() -> None:
    config = configure(model="m", block_size=32, max_num_seqs=3, load_format="dummy", num_threads=1)
    assert (config.model.model, config.cache.block_size, config.scheduler.max_num_seqs) == ("m", 32, 3)
    assert (config.load.load_format, config.device.num_threads) == ("dummy", 1)


def test_what_cannot_start_says_why(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(CheckpointError):
        LLM(str(tmp_path))
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        LLM(str(checkpoint), enable_chunked_prefill=False, max_num_batched_tokens=100, kv_cache_memory_bytes=16 << 20)
