"""EAGLE-3 heads in an engine: their drafts beside transformers' parts, tokens that do not depend on them, wrong heads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from engine_core.errors import ConfigError
from engine_core.request import SamplingParams
from engine_core.scheduling.speculation import Offer, Speculation
from engine_core.startup import StartedEngine
from engine_core.worker.drafters.eagle3 import Eagle3Drafter
from tests.engine_core.engines import Outcome, run, started
from tests.engine_core.models.eagle3_heads import ReferenceHead, make_head, tapped
from tests.engine_core.models.tiny_models import LLAMA3, SIZES, make_model, save_model

DEEP = SIZES | {"num_hidden_layers": 6}
TARGETS = {
    "llama": LlamaConfig(**DEEP, rope_parameters=LLAMA3),
    "qwen3": Qwen3Config(**DEEP, head_dim=32, tie_word_embeddings=True),
    "padded": Qwen3Config(**(DEEP | {"hidden_size": 72, "intermediate_size": 107}), head_dim=18),
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = {"a": [5, 6, 7, 8, 9, 10, 11], "b": [3, 1, 4, 1, 5] * 9, "c": [17]}
Proposals = list[tuple[list[int], list[int], int]]
"""Known tokens, the drafts behind them, and the first position that the head had seen."""


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, PreTrainedModel]]:
    made = {name: make_model(config) for name, config in TARGETS.items()}
    return {name: (save_model(model, tmp_path_factory.mktemp(name)), model) for name, model in made.items()}


@pytest.fixture
def drafts_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for as many drafts as there is room for, and take them all, whatever they cost."""

    def all_of(self: Speculation, offers: list[Offer], most: int) -> list[tuple[Offer, int]]:
        taken: list[tuple[Offer, int]] = []
        for offer in offers:
            self._of(offer.seq)
            count = min(offer.room, self._most, most)
            most -= count
            taken += [(offer, count)] if count > 0 else []
        return taken

    monkeypatch.setattr(Speculation, "ask", lambda self, offers, decoding, most: all_of(self, offers, most))
    monkeypatch.setattr(Speculation, "choose", lambda self, offers, rows, decoding, most: all_of(self, offers, most))


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proposals]:
    """What heads propose during the test."""
    seen: Proposals = []
    propose = Eagle3Drafter.propose

    def recording(self: Eagle3Drafter, wanted: dict[int, int]) -> dict[int, list[int]]:
        drafts = propose(self, wanted)
        for slot, tokens in drafts.items():
            known = self._batch.known_token_ids(slot).tolist()
            seen.append((known, list(tokens), int(self._cache.start[slot])))
        return drafts

    monkeypatch.setattr(Eagle3Drafter, "propose", recording)
    yield seen


def speculating(head: Path, count: int = 4) -> str:
    return json.dumps({"method": "eagle3", "model": str(head), "num_speculative_tokens": count})


def generate(model: Path, params: SamplingParams = GREEDY, **options: object) -> dict[tuple[str, int], Outcome]:
    with started(model, **options) as engine:
        return run(engine, PROMPTS, dict.fromkeys(PROMPTS, params))


def require_drafts(head: ReferenceHead, target: PreTrainedModel, proposals: Proposals) -> None:
    """All ``proposals`` are those of ``head``."""
    assert proposals
    for known, drafts, start in proposals:
        states = tapped(target, known[:-1], head.taps)
        assert drafts == head.drafts(states, known, start, len(drafts)), (len(known), start)


@pytest.mark.parametrize(
    ("name", "form", "options"),
    [
        ("llama", "authors", {}),
        ("qwen3", "pickled", {"draft_vocab_size": None, "norm_before_residual": True, "seed": 1}),
        ("padded", "speculators", {"taps": (0, 5, 5, 4), "attention_bias": True, "num_key_value_heads": 4}),
    ],
)
@pytest.mark.usefixtures("drafts_always")
def test_drafts_are_those_of_transformers_parts(
    name: str, form: str, options: dict[str, object], targets: dict, proposals: Proposals, tmp_path: Path
) -> None:
    path, target = targets[name]
    head = make_head(target, **options)
    fields = {"eagle_aux_hidden_state_layer_ids": list(head.taps)} if "taps" in options else {}
    directory = head.save(tmp_path / "head", form, **fields)
    speculative = speculating(directory)
    drafted = generate(path, speculative_config=speculative, max_num_batched_tokens=16, enable_prefix_caching=False)
    assert {len(drafts) for _, drafts, _ in proposals} >= {4}
    assert all(start == 0 for _, _, start in proposals)
    require_drafts(head, target, proposals)
    plain = generate(path)
    assert {key: each.token_ids for key, each in drafted.items()} == {
        key: each.token_ids for key, each in plain.items()
    }
