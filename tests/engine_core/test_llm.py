"""Offline use: options by name, results in order, log probabilities, errors that leave the engine usable."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine_core.engine import EngineCore
from engine_core.errors import (
    CheckpointError,
    ClosedError,
    ConfigError,
    EngineError,
    ExecutorError,
    InvalidRequestError,
)
from engine_core.llm import LLM
from engine_core.model_loader import location
from engine_core.models.causal_lm import CausalLM
from engine_core.platforms.host_memory import usable_cpus
from engine_core.progress import Stage, StartupProgress
from engine_core.request import FinishReason, Request, SamplingParams
from engine_core.scheduling import SchedulerStats
from engine_core.step import SequenceOutput
from text_core.tokenizer import Tokenizer as RingTokenizer

from .engines import StageDetails
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
    compute, rows = CausalLM.compute_logits, []

    def noting(model: CausalLM, hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return compute(model, hidden)

    monkeypatch.setattr(CausalLM, "compute_logits", noting)
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
        assert choice.finish.finish_reason is FinishReason.LENGTH


PROMPT = "Once upon a time"


def test_text_in_text_out() -> None:
    """The text is what the ring's own tokenizer makes of the ids, which need no tokenizer."""
    options = {"dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": 16 << 20}
    params = SamplingParams(temperature=0.0, max_tokens=20, n=2)
    expected = RingTokenizer.from_directory(TINY)
    with LLM(str(TINY), **options) as llm:
        [result] = llm.generate(PROMPT, params)
        assert result.prompt == PROMPT
        assert result.prompt_token_ids == expected.encode(PROMPT)
        for choice in result.choices:
            assert choice.text == expected.decode(choice.token_ids) != ""
        ids = result.prompt_token_ids
        of_ids = llm.generate([ids, {"prompt": PROMPT}, {"prompt_token_ids": ids}, PROMPT], params)
        assert [each.prompt for each in of_ids] == [None, PROMPT, None, PROMPT]
        assert [[choice.token_ids for choice in each.choices] for each in of_ids] == [
            [choice.token_ids for choice in result.choices]
        ] * 4
        assert [each.choices[0].text for each in of_ids] == [None, result.choices[0].text] * 2
        assert llm.generate([]) == []


def test_a_closed_one_says_so(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), dtype="float32", max_model_len=64, kv_cache_memory_bytes=4 << 20)
    llm.close()
    with pytest.raises(EngineError, match=r"^the LLM is closed") as refused:
        llm.generate([5, 6], GREEDY)
    assert type(refused.value) is ClosedError


def test_a_dropped_one_is_closed(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), dtype="float32", max_model_len=64, kv_cache_memory_bytes=4 << 20)
    assert len(llm.generate([5, 6], GREEDY)) == 1
    executor, thread = llm._engine.executor, llm._thread
    del llm
    with pytest.raises(ExecutorError, match="is closed"):
        executor.collective_rpc("profile")
    with pytest.raises(ClosedError):
        thread.call(lambda call: None)


@pytest.mark.usefixtures("restored_threads")
def test_each_has_its_own_number_of_threads_and_leaves_those_of_the_process(checkpoint: Path) -> None:
    torch.set_num_threads(2)
    stages = [StageDetails(), StageDetails()]
    for options, found in zip(({"num_threads": 1}, {}), stages, strict=True):
        with LLM(str(checkpoint), dtype="float32", progress=StartupProgress(found), max_model_len=64, **options) as llm:  # type: ignore[arg-type]
            assert len(llm.generate([5, 6], GREEDY)) == 1
            assert torch.get_num_threads() == 2
    of_usable = min(2, usable_cpus())
    assert [re.findall(r"(\d+) threads", found.details["device"]) for found in stages] == [["1"], [str(of_usable)]]


def test_text_without_a_tokenizer_says_what_is_missing(llm: LLM) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer: expected tokenizer\.json, or one of "):
        llm.generate(["Once upon a time"], GREEDY)
    assert len(llm.generate([1, 2, 3], GREEDY)) == 1


@pytest.mark.parametrize(
    ("prompts", "params", "error", "words"),
    [
        ([[5], [6, 500]], GREEDY, ValueError, r"^prompts\[1\]: has token id 500; expected ids from 0"),
        ([[5], [10**5000]], GREEDY, ValueError, r"^prompts\[1\]: has token id a number of thousands"),
        ([[5], []], GREEDY, ValueError, r"^prompts\[1\]: is empty; expected at least"),
        (["a", "\ud800"], GREEDY, ValueError, r"^prompts\[1\] has U\+D800 at position 0"),
        ([5], replace(GREEDY, temperature=10**5000), ValueError, "temperature: is a number of thousands of digits"),
        ([[5]] * 2, [GREEDY, replace(GREEDY, n=0)], ValueError, r"^sampling_params\[1\]: n: is 0; expected"),
        (
            [[5]] * 2,
            [GREEDY, replace(GREEDY, seed=np.bool_(True))],  # type: ignore[arg-type]
            ValueError,
            r"^sampling_params\[1\]: seed: is True, of type bool; expected an integer",
        ),
        ([[5]] * 2, [GREEDY, None], TypeError, r"^sampling_params\[1\] is of type NoneType; expected SamplingParams"),
        (
            [[5]] * 3,
            [GREEDY] * 2,
            ValueError,
            "^the number of sampling_params is 2, that of prompts is 3; expected one",
        ),
        ([5], {"temperature": 0}, TypeError, "^sampling_params is of type dict; expected SamplingParams"),
    ],
)
def test_what_is_refused_is_refused_before_any_step(
    llm: LLM, prompts: Any, params: Any, error: type[Exception], words: str
) -> None:
    steps = llm.stats().steps
    with pytest.raises(error, match=words):
        llm.generate(prompts, params)
    stats = llm.stats()
    assert (stats.steps, stats.waiting_seqs, stats.kv_blocks_used) == (steps, 0, 0)
    assert len(llm.generate(PROMPTS, GREEDY)) == 3


def test_numbers_of_numpy_are_taken_for_what_they_are(llm: LLM) -> None:
    """Of every kind, the smallest too, in which nothing may be computed."""
    plain = SamplingParams(
        temperature=0.5,
        top_k=5,
        seed=200,
        n=2,
        max_tokens=5,
        logit_bias={7: 1.5},
        stop_token_ids=frozenset({9}),
        bad_words_token_ids=((6, 6),),
        logprobs=2,
    )
    kinds = {"temperature": np.float16, "top_k": np.uint8, "seed": np.uint8, "n": np.int8, "max_tokens": np.uint64}
    kinds |= {"logprobs": np.int8, "ignore_eos": np.bool_}
    numpys = replace(
        plain,
        **{name: kind(getattr(plain, name)) for name, kind in kinds.items()},
        logit_bias={np.uint8(7): np.float16(1.5)},
        stop_token_ids=frozenset({np.uint8(9)}),
        bad_words_token_ids=((np.int8(6), np.int8(6)),),
    )
    [expected] = llm.generate([5, 6, 7], plain)
    for params in (numpys, replace(plain, seed=np.int64(200))):  # type: ignore[arg-type]
        [result] = llm.generate([5, 6, 7], params)
        assert [choice.token_ids for choice in result.choices] == [choice.token_ids for choice in expected.choices]


def test_stats_can_be_read_in_any_thread_at_any_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's own may change while they are read: only the thread that computes may look at them."""
    stats = EngineCore.stats

    def only_between_steps(core: EngineCore) -> SchedulerStats:
        assert threading.current_thread().name == "offline"
        return stats(core)

    monkeypatch.setattr(EngineCore, "stats", only_between_steps)
    before = llm.stats()
    during: list[SchedulerStats] = []
    step = EngineCore.step

    def read_during(core: EngineCore) -> list[SequenceOutput]:
        reader = threading.Thread(target=lambda: during.append(llm.stats()))
        reader.start()
        reader.join()
        return step(core)

    monkeypatch.setattr(EngineCore, "step", read_during)
    llm.generate(PROMPTS, GREEDY)
    assert [each.steps for each in during] == list(range(before.steps, before.steps + len(during)))
    assert llm.stats().steps == before.steps + len(during)
    assert (llm.stats().running_seqs, llm.stats().kv_blocks_used) == (0, 0)


def test_lengths_beyond_64_bits_are_as_long_as_there_is_room(llm: LLM) -> None:
    [result] = llm.generate([5] * 100, replace(GREEDY, ignore_eos=False, max_tokens=2**70, min_tokens=2**70))
    assert len(result.choices[0].token_ids) == 28


def test_vllms_values_are_taken(llm: LLM) -> None:
    [expected] = llm.generate([5, 6, 7], replace(GREEDY, max_tokens=125))
    ids = expected.choices[0].token_ids
    assert len(ids) == 125
    [result] = llm.generate([5, 6, 7], replace(GREEDY, max_tokens=None, top_k=-1))
    assert result.choices[0].token_ids == ids
    [result] = llm.generate([5, 6, 7], replace(GREEDY, max_tokens=None, top_k=0, stop_token_ids=[ids[4]]))
    assert result.choices[0].token_ids == ids[: ids.index(ids[4]) + 1]
    with pytest.raises(InvalidRequestError, match=r"^sampling_params: stop_token_ids: has token id 500; expected ids"):
        llm.generate([5, 6, 7], replace(GREEDY, stop_token_ids=[500]))


def test_without_a_seed_one_is_drawn_for_each_prompt(llm: LLM) -> None:
    params = SamplingParams(max_tokens=16, seed=None, ignore_eos=True)
    results = [*llm.generate([[5, 6, 7]] * 2, params), *llm.generate([5, 6, 7], params)]
    assert len({tuple(result.choices[0].token_ids) for result in results}) == 3


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "use_tqdm", "shown"),
    [(Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)],
)
def test_progress_is_shown_on_a_terminal(
    llm: LLM, stderr: io.StringIO, use_tqdm: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    llm.generate(PROMPTS, GREEDY, use_tqdm=use_tqdm)
    text = stderr.getvalue()
    assert ("Processed prompts: 100%" in text and "3/3" in text and "tokens/s" in text) == shown
    assert bool(text) == shown


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


@pytest.mark.wide
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
    assert (choice.finish.finish_reason, choice.finish.stop_token_id) == (FinishReason.STOP, 2)


def test_without_params_the_checkpoint_decides(llm: LLM) -> None:
    """Its generation_config.json asks for a temperature of 0.7, and for no top-k by its 0."""
    expected = llm.generate([PROMPTS[0]], SamplingParams(temperature=0.7))
    assert llm.generate([PROMPTS[0]])[0].choices[0].token_ids == expected[0].choices[0].token_ids


def test_stages_are_told_with_seconds_and_bytes(checkpoint: Path) -> None:
    observer, at_start = Mock(), []
    observer.stage_started.side_effect = lambda stage: at_start.append(stage.seconds)
    LLM(str(checkpoint), progress=StartupProgress(observer), max_num_batched_tokens=32, dtype="bfloat16").close()
    told: list[Stage] = [call.args[0] for call in observer.stage_finished.call_args_list]
    names = ["configuration", "device", "load weights", "profile", "allocate KV cache", "warm up", "serving"]
    assert [stage.name for stage in told] == names
    assert set(at_start) == {None}
    assert all(stage.seconds is not None for stage in told)
    by_name = {stage.name: stage for stage in told}
    assert all(by_name[name].bytes for name in ("device", "load weights", "allocate KV cache"))
    assert by_name["profile"].bytes is not None  # 0 where the step finds memory that earlier ones left
    stage, done, total = observer.stage_advanced.call_args.args
    assert stage.name == "load weights"
    assert done == total > 0


def test_the_room_for_adapters_is_told(checkpoint: Path) -> None:
    observer, sizes = Mock(), {"max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 4}
    LLM(
        str(checkpoint), progress=StartupProgress(observer), kv_cache_memory_bytes="4MiB", enable_lora=True, **sizes
    ).close()
    (stage,) = [call.args[0] for call in observer.stage_finished.call_args_list if call.args[0].name == "adapters"]
    assert stage.bytes
    assert stage.detail == "room for 3 of rank 4, 2 used at a time"


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_prefixes_are_forgotten_unless_blocks_are_in_use(checkpoint: Path, async_scheduling: bool) -> None:
    options = {"dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, "block_size": 4}
    prompt = list(range(10, 60))
    with LLM(checkpoint, async_scheduling=async_scheduling, **options) as llm:
        first = llm.generate([prompt], GREEDY)[0]
        assert first.num_cached_tokens == 0
        assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 48
        assert llm.reset_prefix_cache() is True
        again = llm.generate([prompt], GREEDY)[0]
        assert (again.num_cached_tokens, again.outputs) == (0, first.outputs)
        core = llm._engine.core
        core.add(Request("under way", tuple(prompt), GREEDY))
        core.step()
        assert llm.reset_prefix_cache() is False
        core.cancel("under way")
        while core.has_work():
            core.step()
        assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 48
        assert llm.reset_prefix_cache() is True


def test_a_prefix_cache_is_reset_after_the_call_in_progress(llm: LLM) -> None:
    """From another thread: the call computes what it would have computed."""
    expected = llm.generate([7] * 40, GREEDY)[0].outputs
    step, resetting = EngineCore.step, threading.Event()
    answers: list[bool] = []

    def reset() -> None:
        resetting.set()
        answers.append(llm.reset_prefix_cache())

    other = threading.Thread(target=reset)

    def stepping(core: EngineCore) -> list[SequenceOutput]:
        if not resetting.is_set():
            other.start()
            resetting.wait()
        assert not answers
        return step(core)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EngineCore, "step", stepping)
        assert llm.generate([7] * 40, GREEDY)[0].outputs == expected
    other.join()
    assert answers == [True]


def test_an_llm_is_one_engine() -> None:
    with pytest.raises(ConfigError, match=r"^data_parallel_size=2 is not usable: expected 1: an LLM is one engine"):
        LLM(data_parallel_size=2)


def test_without_a_model_it_is_the_bundled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(max_model_len=64, kv_cache_memory_bytes="16MiB") as llm:
        assert Path(llm._config.model.model) == TINY
        assert llm.generate(PROMPT, GREEDY)[0].outputs[0].text
    monkeypatch.setattr(location, "_BUNDLED_MODELS", (TINY / "elsewhere",))
    with pytest.raises(ConfigError, match=r"^model=None is not usable: expected a directory, .* has no bundled model"):
        LLM()
