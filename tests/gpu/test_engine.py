"""Whole engines on a GPU: against transformers, with and without graphs and overlap, and inside their memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.errors import ConfigError
from engine_core.llm import LLM
from engine_core.request import SamplingParams
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import CASES, make_model, save_model

pytestmark = pytest.mark.gpu
FAMILIES = ("llama-gqa", "mistral-mqa-head-dim", "mistral-window", "qwen2-tied", "qwen3-tied-head-dim")
FAMILIES += ("qwen2-window-of-two-layers", "qwen3_moe", "gpt_oss")
PROMPTS = [list(range(5, 5 + length)) for length in (1, 7, 40, 150)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
OPTIONS = {"device": "cuda", "max_num_seqs": 16, "max_num_batched_tokens": 64, "max_model_len": 256}
OPTIONS |= {"kv_cache_memory_bytes": 64 << 20, "dtype": "bfloat16"}


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(configuration(request.param)), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(CASES["qwen3-tied-head-dim"]), tmp_path_factory.mktemp("one"))


def tokens(model: Path, params: SamplingParams | list[SamplingParams] = GREEDY, **options: object) -> list[list[int]]:
    with LLM(str(model), **(OPTIONS | options)) as llm:
        return [result.choices[0].token_ids for result in llm.generate(PROMPTS, params)]


@torch.inference_mode()
def test_greedy_tokens_equal_those_of_transformers_in_float32(checkpoint: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    reference = reference.cuda().eval()
    for made, prompt in zip(tokens(checkpoint, dtype="float32"), PROMPTS, strict=True):
        ids = list(prompt)
        for _ in range(GREEDY.max_tokens):
            ids.append(int(reference(torch.tensor([ids]).cuda()).logits[0, -1].argmax()))
        assert made == ids[len(prompt) :]


@torch.inference_mode()
def test_log_probabilities_in_bfloat16_are_within_its_error(checkpoint: Path) -> None:
    """Beside float32, both this engine and transformers in bfloat16 are off; neither much more than the other."""
    prompt, params = list(range(5, 105)), SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(str(checkpoint), **OPTIONS) as llm:
        [result] = llm.generate([prompt], params)
    assert result.prompt_logprobs is not None
    made = torch.tensor([entry.logprob for entry in result.prompt_logprobs])
    known = {}
    for dtype in (torch.float32, torch.bfloat16):
        reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).cuda().eval()
        logprobs = reference(torch.tensor([prompt]).cuda()).logits[0].float().log_softmax(-1)
        known[dtype] = logprobs[:-1].gather(1, torch.tensor(prompt[1:]).cuda()[:, None])[:, 0].cpu()
    error = (made - known[torch.float32]).abs().mean()
    allowed = (known[torch.bfloat16] - known[torch.float32]).abs().mean()
    assert error <= 1.5 * allowed + 1e-3


def test_graphs_and_overlap_change_no_token(one: Path) -> None:
    params = [GREEDY, SamplingParams(temperature=0.9, top_p=0.8, seed=2, max_tokens=24, ignore_eos=True)] * 2
    expected = tokens(one, params, deterministic=True, enforce_eager=True, async_scheduling=False)
    for eager in (False, True):
        for overlap in (False, True):
            assert tokens(one, params, deterministic=True, enforce_eager=eager, async_scheduling=overlap) == expected


def test_a_deterministic_engine_gives_equal_tokens_alone_and_when_resumed(one: Path) -> None:
    with LLM(str(one), **OPTIONS, deterministic=True) as llm:
        assert not llm.numerics.startswith("unstable")
        together = [result.choices[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]
        for prompt, expected in zip(PROMPTS, together, strict=True):
            [alone] = llm.generate([prompt], GREEDY)
            assert alone.choices[0].token_ids == expected
            [rest] = llm.generate([prompt + expected[:10]], replace(GREEDY, max_tokens=14))
            assert rest.choices[0].token_ids == expected[10:]


def test_without_it_an_engine_says_so(one: Path) -> None:
    with LLM(str(one), **OPTIONS) as llm:
        assert llm.numerics.startswith("unstable")


def test_draws_are_those_of_a_cpu_engine(one: Path) -> None:
    """In float32 logits differ in their last bits, so a draw may fall on the other side of an edge, but seldom."""
    mixed = [
        SamplingParams(temperature=1.0, seed=1, max_tokens=24, ignore_eos=True),
        SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=2, max_tokens=24, logprobs=3, ignore_eos=True),
        SamplingParams(temperature=1.0, min_p=0.02, repetition_penalty=1.2, seed=3, max_tokens=24, ignore_eos=True),
        SamplingParams(temperature=0.0, frequency_penalty=0.5, logit_bias={7: 2.0}, max_tokens=24, ignore_eos=True),
    ]
    on_gpu, on_cpu = (tokens(one, mixed, dtype="float32", device=device) for device in ("cuda", "cpu"))
    assert sum(a == b for a, b in zip(on_gpu, on_cpu, strict=True)) >= 3


@pytest.fixture
def _synchronizations_warn() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("warn")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("_synchronizations_warn")
def test_launching_a_decoding_step_waits_for_nothing(one: Path) -> None:
    with LLM(str(one), **OPTIONS, async_scheduling=False) as llm:
        counts = []
        for steps in (4, 12):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                llm.generate([[5, 6, 7]] * 3, replace(GREEDY, max_tokens=steps))
            counts.append(sum("synchroniz" in str(warning.message) for warning in caught))
    assert counts[1] == counts[0]


def test_memory_stays_inside_its_budget_and_nothing_is_allocated_after_the_warm_up(one: Path) -> None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    utilization = 0.25 if free > 0.3 * total else 0.9 * free / total
    options = OPTIONS | {"kv_cache_memory_bytes": None, "gpu_memory_utilization": utilization}
    options |= {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    with LLM(str(one), **options) as llm:
        reserved = torch.cuda.memory_reserved()
        used = free - torch.cuda.mem_get_info()[0]
        assert used <= utilization * total
        random = SamplingParams(temperature=1.0, top_p=0.9, logprobs=5, max_tokens=40, ignore_eos=True)
        llm.generate([list(range(5, 150))] * 300, [GREEDY, random] * 150)
        assert torch.cuda.memory_reserved() == reserved
        assert free - torch.cuda.mem_get_info()[0] <= utilization * total


def test_what_a_gpu_does_not_have_is_refused_by_name(one: Path) -> None:
    for options, named in (({"quantization": "int8"}, "quantization"), ({"attention_backend": "native"}, "attention")):
        with pytest.raises(ConfigError, match=named):
            LLM(str(one), **OPTIONS, **options)
