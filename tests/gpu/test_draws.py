"""What a GPU draws, and how its rows depend on each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine_core.errors import ConfigError
from engine_core.llm import LLM
from engine_core.request import SamplingParams
from tests.gpu.device import sized
from tests.gpu.engines import GREEDY, LENGTH, OPTIONS, PROMPTS, saved, tokens

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("qwen3-tied-head-dim", tmp_path_factory.mktemp("one"))


def test_draws_are_those_of_a_cpu_engine(one: Path) -> None:
    """In float32 logits differ in their last bits, so a draw may fall on the other side of an edge, but seldom."""
    mixed = [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=2, logprobs=3),
        SamplingParams(temperature=1.0, min_p=0.02, repetition_penalty=1.2, seed=3),
        SamplingParams(temperature=0.0, frequency_penalty=0.5, logit_bias={7: 2.0}),
    ]
    mixed = [replace(params, max_tokens=LENGTH, ignore_eos=True) for params in mixed[-len(PROMPTS) :]]
    on_gpu, on_cpu = (tokens(one, mixed, dtype="float32", device=device) for device in ("cuda", "cpu"))
    assert sum(a == b for a, b in zip(on_gpu, on_cpu, strict=True)) >= len(PROMPTS) - 1


def test_a_deterministic_engine_gives_equal_tokens_alone_and_when_resumed(one: Path) -> None:
    half, chosen = LENGTH // 2, sized(PROMPTS, PROMPTS[-2:])
    with LLM(str(one), **OPTIONS, deterministic=True) as llm:
        assert not llm.numerics.startswith("unstable")
        together = [result.choices[0].token_ids for result in llm.generate(chosen, GREEDY)]
        for prompt, expected in list(zip(chosen, together, strict=True))[: sized(4, 1)]:
            [alone] = llm.generate([prompt], GREEDY)
            assert alone.choices[0].token_ids == expected
            [rest] = llm.generate([prompt + expected[:half]], replace(GREEDY, max_tokens=LENGTH - half))
            assert rest.choices[0].token_ids == expected[half:]


def test_without_it_an_engine_says_so(one: Path) -> None:
    with LLM(str(one), **OPTIONS) as llm:
        assert llm.numerics.startswith("unstable")


def test_what_a_gpu_does_not_have_is_refused_by_name(one: Path) -> None:
    for options, named in (({"quantization": "int8"}, "quantization"), ({"attention_backend": "native"}, "attention")):
        with pytest.raises(ConfigError, match=named):
            LLM(str(one), **OPTIONS, **options)
