"""EAGLE-3 heads in an engine: their drafts beside transformers' parts, tokens without and with them, and bad heads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from engine_core.config import DeviceConfig, EngineConfig, SchedulerConfig
from engine_core.errors import ConfigError
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.request import SamplingParams
from engine_core.startup import StartedEngine, start_engine
from engine_core.worker.drafters import eagle3
from engine_core.worker.drafters.eagle3 import Eagle3Drafter

from ...engines import Speculating, run, speculating, started
from ...models.eagle3_heads import ReferenceHead, make_exact_head, make_head, tapped
from ...models.families import configuration
from ...models.tiny_models import LLAMA3, SIZES, make_model, save_model

DEEP = SIZES | {"num_hidden_layers": 6}
TARGETS = {
    "llama": LlamaConfig(**DEEP, rope_parameters=LLAMA3),
    "qwen3": Qwen3Config(**DEEP, head_dim=32, tie_word_embeddings=True),
    "padded": Qwen3Config(**(DEEP | {"hidden_size": 72, "intermediate_size": 107}), head_dim=18),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PROMPTS = {"a": [5, 6, 7, 8, 9, 10, 11], "b": [3, 1, 4, 1, 5] * 8, "c": [17]}
_propose = Eagle3Drafter.propose
Checkpoints = dict[str, tuple[Path, PreTrainedModel]]
Answers = dict[tuple[str, int], tuple[list[int], list[object]]]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    made = {name: make_model(config) for name, config in TARGETS.items()}
    return {name: (save_model(model, tmp_path_factory.mktemp(name)), model) for name, model in made.items()}


@dataclass(frozen=True)
class Proposal:
    known: list[int]
    drafts: list[int]
    start: int
    """The first position that the head had seen."""


class Proposing:
    """An engine whose head drafts wherever it can, and what it proposes."""

    def __init__(self, found: Speculating) -> None:
        self.engine, self.executor = found.engine, found.executor
        self.proposals: list[Proposal] = []

    def propose(self, drafter: Eagle3Drafter, wanted: dict[int, int]) -> dict[int, list[int]]:
        """As the drafter does, and remember it."""
        proposed = _propose(drafter, wanted)
        for slot, drafts in proposed.items():
            known = drafter._batch.known_token_ids(slot).tolist()
            self.proposals.append(Proposal(known, drafts, int(drafter._cache.start[slot])))
        return proposed

    def answers(self, params: SamplingParams = GREEDY) -> Answers:
        return answers(self.engine, params)


@contextmanager
def proposing(model: Path, head: Path, count: int = 4, **options: object) -> Iterator[Proposing]:
    with speculating(model, drafting_by(head, count), **{"num_threads": 1, **options}) as found:
        yielded = Proposing(found)
        with patch.object(Eagle3Drafter, "propose", lambda drafter, wanted: yielded.propose(drafter, wanted)):
            yield yielded


def drafting_by(head: Path, count: int = 4) -> dict[str, object]:
    return {"method": "eagle3", "model": str(head), "num_speculative_tokens": count}


def answers(engine: StartedEngine, params: SamplingParams = GREEDY) -> Answers:
    """Tokens and log probabilities of all choices."""
    outcomes = run(engine, PROMPTS, dict.fromkeys(PROMPTS, params))
    return {key: (each.token_ids, each.logprobs) for key, each in outcomes.items()}


def plain_answers(model: Path, params: SamplingParams = GREEDY) -> Answers:
    """Without drafts."""
    with started(model, num_threads=1) as engine:
        return answers(engine, params)


def refuse(model: Path, head: Path, said: str, **options: object) -> None:
    given = json.dumps(drafting_by(head))
    with pytest.raises(ConfigError, match=r"speculative_config=.*" + said) as refused:
        start_engine(configure(model=str(model), speculative_config=given, **options), StartupProgress())
    assert refused.value.option == "speculative_config"


def require_drafts(head: ReferenceHead, target: PreTrainedModel, proposals: list[Proposal]) -> None:
    """All ``proposals`` are those of ``head``."""
    assert proposals
    texts = [each.known for each in sorted(proposals, key=lambda each: -len(each.known))]
    states: dict[int, torch.Tensor] = {}
    for each in proposals:
        at = next(at for at, text in enumerate(texts) if text[: len(each.known)] == each.known)
        if at not in states:
            states[at] = tapped(target, texts[at], head.taps)
        found = head.drafts(states[at][: len(each.known) - 1], each.known, each.start, len(each.drafts))
        assert each.drafts == found, (len(each.known), each.start)


@pytest.mark.parametrize(
    ("name", "form", "options"),
    [
        ("llama", "authors", {}),
        ("qwen3", "pickled", {"draft_vocab_size": None, "norm_before_residual": True, "seed": 1}),
        ("padded", "speculators", {"taps": (0, 5, 5, 4), "attention_bias": True, "num_key_value_heads": 4}),
    ],
)
def test_drafts_are_those_of_transformers_parts(
    name: str, form: str, options: dict[str, object], targets: Checkpoints, tmp_path: Path
) -> None:
    """Also of prompts in chunks, and of a head whose embedding is its own."""
    path, target = targets[name]
    head = make_head(target, **options)
    if name == "llama":
        torch.nn.init.normal_(head.embed_tokens.weight, 0.0, 0.2)
    fields = {"eagle_aux_hidden_state_layer_ids": list(head.taps)} if "taps" in options else {}
    directory = head.save(tmp_path / "head", form, **fields)
    with proposing(path, directory, max_num_batched_tokens=16, enable_prefix_caching=False) as found:
        drafted = found.answers()
    assert drafted == plain_answers(path)
    assert 4 in {len(each.drafts) for each in found.proposals}
    assert {each.start for each in found.proposals} == {0}
    require_drafts(head, target, found.proposals)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"async_scheduling": True}, id="overlapping"),
        pytest.param(
            {"block_size": 4, "max_model_len": 64, "kv_cache_memory_bytes": 400_000},
            id="preemption",
            marks=pytest.mark.wide,
        ),
        pytest.param({"max_num_batched_tokens": 16, "max_num_seqs": 5}, id="chunks", marks=pytest.mark.wide),
        pytest.param({"attention_backend": "torch"}, id="torch", marks=pytest.mark.wide),
    ],
)
def test_an_exact_head_makes_no_mistake(options: dict[str, object], tmp_path: Path) -> None:
    """At a temperature, with penalties and bans: it draws with the target's noise."""
    target = make_model(LlamaConfig(**(DEEP | {"num_key_value_heads": 4})))
    head = make_exact_head(target).save(tmp_path / "head")
    path = save_model(target, tmp_path / "target")
    params = SamplingParams(
        temperature=1.5,
        top_p=0.9,
        min_p=0.001,
        seed=5,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        logit_bias={7: 1.5},
        bad_words_token_ids=((9,), (3, 4)),
        min_tokens=4,
        logprobs=2,
        max_tokens=16,
        n=2,
    )
    with proposing(path, head, **options) as found:
        drafted = [found.answers(params) for _ in range(2)]  # the second finds prompts in the cache
    plain = plain_answers(path, params)
    assert drafted == [plain, plain]
    assert len({tuple(tokens) for tokens, _ in plain.values()}) > 4
    assert found.executor.accepted == found.executor.planned > 15


@pytest.mark.distributed
@pytest.mark.parametrize("own", [False, True], ids=["the target's embedding", "an embedding"])
def test_a_rank_that_samples_has_the_whole_head(own: bool, tmp_path: Path) -> None:
    target = make_model(LlamaConfig(**(DEEP | {"num_key_value_heads": 4})))
    head = make_exact_head(target).save(tmp_path / "head")
    if not own:
        _with(head, **{"embed_tokens.weight": torch.empty(0)})
    path = save_model(target, tmp_path / "target")
    params = SamplingParams(temperature=1.0, seed=5, logprobs=1, max_tokens=16)
    with proposing(path, head, tensor_parallel_size=2) as found:
        drafted = found.answers(params)
    assert drafted == plain_answers(path, params)
    assert found.executor.accepted == found.executor.planned > 20


def test_some_drafts_of_a_head_with_few_tokens_are_right(tmp_path: Path) -> None:
    target = make_model(LlamaConfig(**(DEEP | {"num_key_value_heads": 4})))
    exact = make_exact_head(target)
    exact.token_ids = torch.arange(1, exact.config.vocab_size, 2)
    exact.lm_head.weight.data = exact.lm_head.weight.data[1::2]
    path, head = save_model(target, tmp_path / "target"), exact.save(tmp_path / "head")
    params = SamplingParams(temperature=1.0, seed=1, logprobs=1, max_tokens=30, ignore_eos=True, n=2)
    without = replace(params, allowed_token_ids=(2, 8, 20, 34))
    with proposing(path, head) as found:
        drafted = found.answers(params)
        masked = found.answers(without)
    assert drafted == plain_answers(path, params)
    assert masked == plain_answers(path, without)
    assert 0 < found.executor.accepted < found.executor.planned


def test_drafts_begin_behind_cached_prefixes_and_what_was_not_followed(
    targets: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are wanted late, for a sequence that is still followed, and for one that is not any more."""
    path, target = targets["llama"]
    head = make_head(target)
    directory = head.save(tmp_path / "head")
    params = replace(GREEDY, max_tokens=40)
    for idle, late in ((eagle3._MOST_IDLE, {0}), (20, {32})):
        monkeypatch.setattr(eagle3, "_MOST_IDLE", idle)
        with proposing(path, directory, max_num_seqs=5, block_size=4, max_model_len=512) as found:
            propose = found.propose

            def late_only(drafter: Eagle3Drafter, wanted: dict[int, int], propose=propose) -> dict[int, list[int]]:
                known = {slot: len(drafter._batch.known_token_ids(slot)) for slot in wanted}
                return propose(drafter, {slot: most for slot, most in wanted.items() if known[slot] >= 77})

            found.propose = late_only  # type: ignore[method-assign]
            outcomes = run(found.engine, {"b": PROMPTS["b"]}, {"b": params})
            assert len(outcomes["b", 0].token_ids) == 40
            firsts = {each.start for each in found.proposals}
            assert firsts == {0} if late == {0} else min(firsts) > 40
            require_drafts(head, target, found.proposals)
            found.proposals.clear()
            again = run(found.engine, {"c": [*PROMPTS["b"], 9, 9]}, {"c": params})
            assert again["c", 0].cached_tokens == 40
            assert found.proposals
            require_drafts(head, target, found.proposals)


HEADS: dict[str, tuple[dict[str, object], str]] = {
    "hidden size": ({"hidden_size": 128, "target_hidden_size": 96}, r"hidden_size=96, .* hidden_size=64"),
    "vocabulary": ({"vocab_size": 198}, r"vocab_size=198, .* vocab_size=199"),
    "layers": ({"eagle_aux_hidden_state_layer_ids": [2, 5, 6]}, r"layers 2, 5, 6, but this model has 6"),
    "no layers": ({"eagle_aux_hidden_state_layer_ids": "all"}, r"'all' is not usable: expected a list"),
    "more layers": ({"num_hidden_layers": 2}, r"num_hidden_layers=2 is not supported"),
    "no head": ({"draft_vocab_size": "many"}, r"draft_vocab_size='many' is not usable"),
    "another form": ({"norm_before_fc": True}, r"norm_before_fc=True is not supported"),
    "another number": ({"draft_vocab_size": 60}, r"2 mis-shaped"),
}


@pytest.mark.parametrize(("fields", "said"), HEADS.values(), ids=HEADS)
def test_heads_of_other_models_are_refused(
    fields: dict[str, object], said: str, targets: Checkpoints, tmp_path: Path
) -> None:
    path, target = targets["llama"]
    head = make_head(target).save(tmp_path, **fields)
    refuse(path, head, r"EAGLE-3 head for this model: .*" + said)


def _cut_short(head: Path) -> None:
    file = head / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _with(head: Path, **tensors: torch.Tensor) -> None:
    file = head / "model.safetensors"
    save_file({name: tensor for name, tensor in (load_file(file) | tensors).items() if tensor.numel()}, file)


DAMAGES = {
    "truncated": (_cut_short, r"is damaged or not a safetensors file"),
    "d2t beyond the vocabulary": (lambda head: _with(head, d2t=torch.full((64,), 150)), r"d2t names tokens from 150"),
    "d2t before the vocabulary": (lambda head: _with(head, d2t=torch.full((64,), -1)), r"d2t names tokens from -1"),
    "no d2t": (lambda head: _with(head, d2t=torch.empty(0)), r"no d2t, .* draft_vocab_size=64 are: .* vocab_size=199"),
    "a token twice": (lambda head: _with(head, d2t=-torch.arange(64)), r"names a token twice"),
    "NaN": (lambda head: _with(head, **{"norm.weight": torch.full((64,), torch.nan)}), r"computes no numbers"),
    "NaN in a row": (
        lambda head: _with(head, **{"lm_head.weight": torch.eye(64).index_fill(0, torch.tensor([3]), torch.nan)}),
        r"computes no numbers",
    ),
    "NaN in the embedding": (
        lambda head: _with(head, **{"embed_tokens.weight": torch.full((199, 64), torch.inf)}),
        r"computes no numbers",
    ),
    "no fc": (lambda head: _with(head, **{"fc.weight": torch.empty(0)}), r"1 missing \(fc.weight\)"),
    "a further tensor": (lambda head: _with(head, more=torch.ones(1)), r"1 unexpected \(more\)"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_heads_are_refused(damage, said: str, targets: Checkpoints, tmp_path: Path) -> None:
    path, target = targets["llama"]
    head = make_head(target).save(tmp_path)
    damage(head)
    refuse(path, head, r"EAGLE-3 head for this model: .*" + said)


def test_a_head_without_an_embedding_takes_the_targets(targets: Checkpoints, tmp_path: Path) -> None:
    path, target = targets["qwen3"]
    head = make_head(target)
    directory = head.save(tmp_path / "head")
    _with(directory, **{"embed_tokens.weight": torch.empty(0)})
    with proposing(path, directory) as found:
        found.answers()
    require_drafts(head, target, found.proposals)


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_attention_planned_for_the_models_heads_is_refused(method: str) -> None:
    given = json.dumps({"method": method} | ({} if method == "mtp" else {"model": "head"}))
    with pytest.raises(ConfigError, match=f"triton with the method {method} of --speculative-config"):
        EngineConfig(
            scheduler=SchedulerConfig(speculative_config=given), device=DeviceConfig(attention_backend="flashinfer")
        )


def test_targets_whose_layers_cannot_be_read_are_refused(targets: Checkpoints, tmp_path: Path) -> None:
    head = make_head(targets["llama"][1]).save(tmp_path / "head")
    streams = save_model(make_model(configuration("gemma3n_text")), tmp_path / "target")
    refuse(streams, head, r" an EAGLE-3 head cannot read the layers of Gemma3nForCausalLM")
    refuse(targets["llama"][0], head, r" with --pipeline-parallel-size: a head reads early", pipeline_parallel_size=2)
