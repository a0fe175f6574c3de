"""Greedy tokens equal transformers' and log probabilities agree, through the whole engine, for every family.

A choice of the reference is taken up to the first position where its two best logits are nearly equal, as float32
arithmetic in another order may choose either there; that cuts little (see ``test_references_are_decisive``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine_core.kv_cache_interface import blocks_of_longest
from engine_core.model_loader.loader import make_model as make_model_without_weights
from engine_core.request import SamplingParams

from .engines import Outcome, run, started
from .models.driver import BLOCK_SIZE, CPU, chosen_attention, layers_of, open_at
from .models.families import FALLBACK, OWN, configuration
from .models.routing import routers_of
from .models.tiny_models import make_model, save_model

TOKENS = 64
LENGTHS = (1, 7, 33, 90)
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
NEAR = 2e-4
IN_EVERY_RUN = (
    "llama-gqa", "llama3-rope", "mistral-window", "olmo2-tied-biases-padded", "qwen2-window-of-two-layers",
    "qwen3-mha-biases", "qwen3-padded",
)  # fmt: skip
"""What ``make test`` asks whole engines for; test_against_transformers.py has the logits of the others."""


class Case:
    """A checkpoint, prompts for it, and what transformers continues them with."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.model: PreTrainedModel = make_model(configuration(name), seed=3)
        self.directory = save_model(self.model, directory)
        generator = torch.Generator().manual_seed(11)
        self.prompts = {
            f"{length}": torch.randint(3, 199, (length,), generator=generator).tolist() for length in LENGTHS
        }
        self.expected = {name: self.reference(prompt) for name, prompt in self.prompts.items()}

    @torch.inference_mode()
    def reference(self, prompt: list[int]) -> list[int]:
        """Greedy tokens, up to a near tie."""
        output = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        gaps = torch.stack([step[0].topk(2).values.diff().abs().squeeze() for step in output.logits])
        decisive = int((gaps < NEAR).float().cumsum(0).eq(0).sum())
        return output.sequences[0, len(prompt) :].tolist()[:decisive]

    def check(self, outcomes: dict[tuple[str, int], Outcome], length: int = TOKENS) -> None:
        """All prompts were continued by ``length`` tokens, as the reference is."""
        for name, expected in self.expected.items():
            got = outcomes[name, 0].token_ids
            assert len(got) == length
            assert got[: len(expected)] == expected[:length], f"prompt of {name} tokens"


def names() -> list[Any]:
    marks = {name: [] if name in IN_EVERY_RUN else [pytest.mark.models] for name in {**OWN, **FALLBACK}}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.fixture(scope="module", params=names())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def same_params(case: Case) -> dict[str, SamplingParams]:
    return dict.fromkeys(case.prompts, GREEDY)


def test_references_are_decisive(case: Case) -> None:
    """Nearly all of the 64 tokens of nearly all prompts are compared."""
    assert sum(len(expected) == TOKENS for expected in case.expected.values()) >= len(LENGTHS) - 1


def test_together_in_chunks_then_with_prefix_hits(case: Case, same_params: dict[str, SamplingParams]) -> None:
    """Steps of at most 24 tokens: long prompts take several, beside the others' decoding."""
    with started(case.directory, max_num_batched_tokens=24, max_num_seqs=4) as engine:
        case.check(run(engine, case.prompts, same_params))
        again = run(engine, case.prompts, dict.fromkeys(case.prompts, replace(GREEDY, max_tokens=12)))
        case.check(again, length=12)
        assert {name: again[name, 0].cached_tokens for name in case.prompts} == {"1": 0, "7": 0, "33": 32, "90": 80}


def test_whole_prompts_in_one_step(case: Case, same_params: dict[str, SamplingParams]) -> None:
    with started(case.directory, enable_chunked_prefill=False, enable_prefix_caching=False) as engine:
        case.check(run(engine, case.prompts, same_params))
        assert engine.core.stats().steps == TOKENS


def least_cache(directory: Path, max_model_len: int, step_tokens: int) -> int:
    """Bytes of a KV cache that the longest sequence just fits in."""
    checkpoint = open_at(directory, dtype="float32", max_model_len=max_model_len)
    attention = chosen_attention()
    model = make_model_without_weights(checkpoint, attention, layers_of(checkpoint), CPU)
    blocks = blocks_of_longest(model.kv_cache_groups, max_model_len, step_tokens, BLOCK_SIZE)
    return blocks * attention.bytes_per_block(model.kv_cache_spec(BLOCK_SIZE))


def test_after_preemption(case: Case, same_params: dict[str, SamplingParams]) -> None:
    """A cache where all prompts fit and not all continuations: the last ones are computed again."""
    options = {"max_model_len": 170, "max_num_batched_tokens": 16}
    cache = least_cache(case.directory, 170, 16)
    if "chunk" in str(case.model.config.to_dict().get("layer_types")):  # with chunks, more cannot begin together
        cache = cache * 27 // 20
    with started(case.directory, kv_cache_memory_bytes=cache, **options) as engine:
        case.check(run(engine, case.prompts, same_params))
        assert engine.core.stats().preemptions > 0


@torch.inference_mode()
def test_bfloat16_logprobs_are_as_near_as_transformers_own(case: Case) -> None:
    """Against float32, the engine in bfloat16 errs no more than transformers in bfloat16 does (twice, at most)."""
    if routers_of(case.model):
        pytest.skip("rounded routers choose other experts; test_against_transformers.py forces the choice")
    prompt = case.prompts["90"]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    ids = torch.tensor([prompt])
    exact = case.model(ids).logits[0].log_softmax(-1)
    rounded = case.model.to(torch.bfloat16)(ids).logits[0].float().log_softmax(-1)
    case.model.float()  # its weights are rounded now, which no test after this one minds
    with started(case.directory, dtype="bfloat16", max_num_batched_tokens=32) as engine:
        outputs = run(engine, {"90": prompt}, {"90": params})["90", 0].outputs
    entries = [entry for output in outputs for entry in output.prompt_logprobs or ()]
    got = torch.tensor([entry.logprob for entry in entries])
    places = torch.arange(len(prompt) - 1), ids[0, 1:]
    errors, allowed = (got - exact[places]).abs(), (rounded[places] - exact[places]).abs()
    assert errors.mean() < 2 * allowed.mean()
    assert errors.max() < 2 * allowed.max()
