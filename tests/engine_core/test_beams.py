"""Beam search through the whole engine: texts, scores and ends are those of transformers, whatever else is computed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from engine_core.model_loader.location import bundled_model
from engine_core.request import BeamSearch, Finish, FinishReason, Request, SamplingParams
from engine_core.startup import StartedEngine
from engine_core.step import SequenceOutput

from .engines import BLOCK_BYTES, started
from .models.families import configuration
from .models.tiny_models import make_model, save_model
from .scheduling.audit import check_idle

IN_EVERY_RUN = ("llama-gqa",)
WITH_MODELS = (
    "mistral-window", "qwen2-window-of-two-layers", "qwen3-padded", "gemma3_text", "gpt_oss", "mixtral", "deepseek_v3",
    "glm4_moe", "lfm2", "qwen3_5_text", "granitemoehybrid", "nemotron_h", "mamba2",
)  # fmt: skip
MAX_TOKENS = 16
EOS = 2
NEAR = 2e-5
"""Relative to a score: transformers computes log probabilities in another order."""


class Reference(NamedTuple):
    """What transformers finds for one request."""

    outputs: list[list[int]]
    scores: list[float]


@torch.inference_mode()
def reference(
    model: PreTrainedModel, prompt: list[int], params: SamplingParams, eos: Sequence[int] = (EOS,)
) -> Reference:
    """The ``n`` best outputs, without what fills them behind their ends."""
    search = params.beam_search
    assert search is not None
    ends = [*params.stop_token_ids, *([] if params.ignore_eos else eos)]
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=params.max_tokens,
        min_new_tokens=params.min_tokens or None,
        do_sample=False,
        num_beams=search.width,
        num_return_sequences=params.n,
        length_penalty=search.length_penalty,
        early_stopping="never" if search.early_stopping is None else search.early_stopping,
        repetition_penalty=float(params.repetition_penalty),
        bad_words_ids=[list(word) for word in params.bad_words_token_ids] or None,
        sequence_bias={(token,): bias for token, bias in params.logit_bias.items()} or None,
        prefix_allowed_tokens_fn=None
        if params.allowed_token_ids is None
        else lambda *_: list(params.allowed_token_ids or ()),
        eos_token_id=ends or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    outputs = []
    for sequence in found.sequences[:, len(prompt) :].tolist():
        end = next((at + 1 for at, token in enumerate(sequence) if token in ends), len(sequence))
        outputs.append(sequence[:end])
    return Reference(outputs, found.sequences_scores.tolist())


def searched(engine: StartedEngine, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, list[Any]]:
    """The final outputs of each request, by choice; all requests are computed together."""
    for name, (prompt, params) in requests.items():
        engine.core.add(Request(name, tuple(prompt), params))
    ended: dict[str, dict[int, SequenceOutput]] = {name: {} for name in requests}
    while engine.core.has_work():
        for output in engine.core.step():
            assert (
                not output.token_ids or output.finish is not None or requests[output.request_id][1].beam_search is None
            )
            if output.finish is not None:
                ended[output.request_id][output.choice] = output
    return {name: [of_choice[choice] for choice in sorted(of_choice)] for name, of_choice in ended.items()}


def _prompts(seed: int, lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 199, (length,), generator=generator).tolist() for length in lengths]


def _requests() -> dict[str, tuple[list[int], SamplingParams]]:
    """Widths 2 to 8, all kinds of ends and penalties, by name."""
    searches = [
        BeamSearch(2), BeamSearch(3, 0.0, None), BeamSearch(4, 2.0, True), BeamSearch(5, 1.0, None),
        BeamSearch(8, -1.0), BeamSearch(7, 0.6), BeamSearch(6, 1.0, True),
    ]  # fmt: skip
    cases: dict[str, tuple[list[int], SamplingParams]] = {}
    kinds = ({}, {"ignore_eos": True}, {"stop_token_ids": frozenset({14, 100, 141, 134})})
    for number, search in enumerate(searches):
        n = (search.width + 1) // 2
        plain = SamplingParams(temperature=0.0, n=n, max_tokens=MAX_TOKENS, beam_search=search)
        [prompt] = _prompts(number, ((1, 17, 70)[number % 3],))
        cases[f"search {number}"] = prompt, replace(plain, **kinds[number // 2 % 3])
    plain = SamplingParams(temperature=0.0, n=3, max_tokens=MAX_TOKENS, beam_search=BeamSearch(4))
    first, second, third, fourth, fifth = _prompts(99, (9, 16, 33, 40, 5))
    cases["repetition"] = first, replace(plain, repetition_penalty=1.3)
    cases["bad words"] = second, replace(plain, bad_words_token_ids=((14,), (100, 101), (134, 5)))
    cases["bias"] = third, replace(plain, logit_bias={EOS: 2.0, 14: -5.0, 50: 1.5})
    cases["min tokens"] = fourth, replace(plain, min_tokens=8)
    cases["allowed"] = fifth, replace(plain, allowed_token_ids=(EOS, 9, 10, 11, 12, 13, 14, 15, 16))
    return cases


REQUESTS = _requests()


class Case:
    """A checkpoint, and what transformers finds for all requests."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        model = make_model(configuration(name), seed=3)
        self.directory = save_model(model, directory)
        self.expected = {each: reference(model, *request) for each, request in REQUESTS.items()}

    def check(self, outputs: dict[str, list[SequenceOutput]]) -> None:
        """All outputs are those of transformers."""
        for name, expected in self.expected.items():
            got = outputs[name]
            assert [output.token_ids for output in got] == expected.outputs, name
            scores = [output.beam_score for output in got]
            assert scores == pytest.approx(expected.scores, rel=NEAR, abs=NEAR), name
            for output in got:
                last, params = output.token_ids[-1], REQUESTS[name][1]
                stops = last in params.stop_token_ids or (last == EOS and not params.ignore_eos)
                length = Finish(FinishReason.LENGTH)
                assert output.finish == (Finish(FinishReason.STOP, last) if stops else length), name


def _names() -> list[Any]:
    return [*IN_EVERY_RUN, *(pytest.param(name, marks=pytest.mark.models) for name in WITH_MODELS)]


@pytest.fixture(scope="module", params=_names())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("beams"))


@pytest.fixture(scope="module")
def found(case: Case) -> dict[str, list[SequenceOutput]]:
    """With room for all beams of several requests."""
    with started(case.directory, max_num_seqs=32) as engine:
        return searched(engine, REQUESTS)


def test_outputs_scores_and_ends_are_those_of_transformers(case: Case, found: dict[str, list[SequenceOutput]]) -> None:
    case.check(found)


SMALL = {"llama-gqa": BLOCK_BYTES * 13, "lfm2": 140_000}
"""Bytes in which beams lose their blocks, and wait for each other's."""
OPTIONS: dict[str, dict[str, object]] = {
    "preempted": {"max_num_seqs": 8, "max_model_len": 128},
    "in chunks": {"max_num_seqs": 9, "max_num_batched_tokens": 12, "enable_prefix_caching": False},
    "ahead": {
        "max_num_seqs": 32,
        "async_scheduling": True,
        "block_size": 4,
        "speculative_config": '{"method": "ngram"}',
    },
    "two ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
}


@pytest.mark.parametrize(
    "name",
    [
        "preempted",
        pytest.param("in chunks", marks=pytest.mark.models),
        "ahead",
        pytest.param("two ranks", marks=pytest.mark.distributed),
        pytest.param("two stages", marks=pytest.mark.distributed),
    ],
)
def test_bits_depend_on_nothing_else(case: Case, found: dict[str, list[SequenceOutput]], name: str) -> None:
    options = OPTIONS[name]
    if name == "preempted":
        if case.name not in SMALL:
            pytest.skip("how much memory is little depends on the family")
        options = {**options, "kv_cache_memory_bytes": SMALL[case.name]}
    with started(case.directory, **options) as engine:
        sampled = SamplingParams(seed=5, max_tokens=30, ignore_eos=True, logprobs=2)
        others = {f"other {at}": (prompt, sampled) for at, prompt in enumerate(_prompts(7, (30, 50)))}
        again = searched(engine, {**others, **REQUESTS})
        check_idle(engine.core._scheduler)
        preempted = engine.core.stats().preemptions
    for request, outputs in found.items():
        assert [(each.token_ids, each.beam_score, each.finish) for each in again[request]] == [
            (each.token_ids, each.beam_score, each.finish) for each in outputs
        ], request
    assert preempted or name != "preempted"


WORDS = [
    "Once",
    "upon",
    "a",
    "time",
    "there",
    "was",
    "the",
    "red",
    "ball",
    "and",
    "two",
    "sisters",
    "who",
    "had",
    "an",
    "old",
    "boat",
]


@pytest.mark.wide
@pytest.mark.timeout(900)
@torch.inference_mode()
def test_two_hundred_prompts_end_as_with_transformers() -> None:
    """Texts of a model that has learned some; of near ties float64 shows that either may win."""
    tokenizer = AutoTokenizer.from_pretrained(bundled_model())
    model = AutoModelForCausalLM.from_pretrained(bundled_model(), dtype="float32")
    exact = AutoModelForCausalLM.from_pretrained(bundled_model(), dtype="float64")
    generator = random.Random(3)
    requests: dict[str, tuple[list[int], SamplingParams]] = {}
    for number in range(200):
        words = generator.choices(WORDS, k=6)
        width = 2 + number % 7
        search = BeamSearch(width, generator.choice([1.0, 0.0, 2.0, -0.5]), generator.choice([False, True, None]))
        params = SamplingParams(temperature=0.0, n=width, max_tokens=generator.randint(5, 40), beam_search=search)
        requests[f"{number}"] = tokenizer(" ".join(words))["input_ids"], params
    with started(bundled_model(), max_num_seqs=64, max_model_len=128) as engine:
        eos, outputs = engine.core.model.eos_token_ids, searched(engine, requests)
    ties = 0
    for name, request in requests.items():
        expected, got = reference(model, *request, eos=eos), outputs[name]
        if [each.token_ids for each in got] != expected.outputs:
            assert reference(exact, *request, eos=eos).outputs != expected.outputs, name
            ties += 1
            continue
        assert [each.beam_score for each in got] == pytest.approx(expected.scores, rel=NEAR, abs=NEAR), name
    assert ties <= 2
