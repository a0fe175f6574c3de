"""Whole models of the Qwen family: an engine continues prompts with pictures as transformers does, pixels to tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine_core.media import MediaItem, Picture
from engine_core.models.encoding import Encoding
from engine_core.request import Request, SamplingParams
from engine_core.startup import StartedEngine
from tests.engine_core.distributed.matrix import Ranks, engine_of
from tests.engine_core.engines import Outcome, started
from tests.engine_core.models.greedy import NEAR
from tests.engine_core.models.tiny_models import compute_token_by_token
from tests.engine_core.vision.test_qwen_vl import MOST, make, picture_of, processed, save

PICTURE_TOKEN = 190
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
Part = int | Picture
SHARED = picture_of(3, 4, 1)
PROMPTS: dict[str, Sequence[Part]] = {
    "two": (5, SHARED, 6, picture_of(1, 5, 2), 4),
    "text": (21,),
    "first": (picture_of(5, 2, 3), 3),
    "again": (5, SHARED, 9),
    "other": (5, picture_of(3, 4, 4), 9),
    "long": (40, picture_of(7, 9, 5), 2, SHARED, 1),
}


def prompt(parts: Sequence[Part]) -> tuple[list[int], list[MediaItem]]:
    """Token ids and pictures: so many tokens of text, or a picture."""
    ids: list[int] = []
    media = []
    for part in parts:
        if isinstance(part, Picture):
            media.append(MediaItem(part, len(ids)))
            ids += [PICTURE_TOKEN] * part.shape.num_tokens
        else:
            ids += [(31 * (len(ids) + place)) % 180 + 3 for place in range(part)]
    return ids, media


def generated(engine: StartedEngine, names: Sequence[str] = tuple(PROMPTS)) -> dict[str, list[int]]:
    """The tokens of all prompts, run together."""
    outcomes: dict[str, Outcome] = {}
    for name in names:
        ids, media = prompt(PROMPTS[name])
        engine.core.add(Request(name, tuple(ids), GREEDY, media=tuple(media)))
    while engine.core.has_work():
        for output in engine.core.step():
            outcomes.setdefault(output.request_id, Outcome()).outputs.append(output)
    return {name: outcome.token_ids for name, outcome in outcomes.items()}


@torch.no_grad()
def logits(model: Any, ids: Sequence[int], media: Sequence[MediaItem]) -> torch.Tensor:
    """transformers' [T, V]."""
    given: dict[str, Any] = {}
    if media:
        each = [processed(item.picture) for item in media]
        given = {name: torch.cat([one[name] for one in each]) for name in each[0]}
        given["mm_token_type_ids"] = (torch.tensor([ids]) == PICTURE_TOKEN).int()
    model.model.rope_deltas = None  # of the prompt before
    found: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False, **given).logits[0]
    return found


@pytest.fixture(params=MOST)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    model = make(request.param)
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            parameter.mul_(0.6 if parameter.ndim > 1 else 1.0)
        model.lm_head.weight[PICTURE_TOKEN:] = 0.0  # transformers would see a picture in its token
    compute_token_by_token(model)
    return model, save(model, tmp_path)


def test_tokens_are_those_of_transformers(made: tuple[Any, Path]) -> None:
    model, directory = made
    with started(directory, max_num_batched_tokens=48, max_num_seqs=4) as engine:
        found = generated(engine)
        assert generated(engine) == found  # from caches
        assert {name: generated(engine, [name])[name] for name in PROMPTS} == found
    decisive = []
    for name, tokens in found.items():
        ids, media = prompt(PROMPTS[name])
        assert len(tokens) == GREEDY.max_tokens
        assert max(tokens) < PICTURE_TOKEN
        ahead = logits(model, [*ids, *tokens], media)[len(ids) - 1 : -1]
        best = ahead.topk(2).values
        chosen = ahead.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert not (best[:, 0] - chosen >= NEAR).any(), name
        decisive.append(best[:, 0] - best[:, 1] >= NEAR)
    assert torch.cat(decisive).float().mean() > 0.9
    assert found["again"] != found["other"], "pictures that differ change nothing"


def beside_text(engine: StartedEngine, name: str) -> list[int]:
    """The tokens of a prompt that comes while others are generated, after one with its picture was cancelled."""
    ids, media = prompt(PROMPTS[name])
    text = SamplingParams(max_tokens=200, ignore_eos=True)
    engine.core.add(Request("text", tuple(prompt([5])[0]), text))
    while not engine.core.step():
        pass
    engine.core.add(Request("cancelled", tuple(ids), GREEDY, media=tuple(media)))
    engine.core.step()
    engine.core.cancel("cancelled")
    engine.core.add(Request(name, tuple(ids), GREEDY, media=tuple(media)))
    outcome = Outcome()
    while not (outcome.outputs and outcome.outputs[-1].finish):
        outcome.outputs += [output for output in engine.core.step() if output.request_id == name]
    engine.core.cancel("text")
    return outcome.token_ids


def test_a_picture_in_portions_is_answered_as_a_whole_one(tmp_path: Path) -> None:
    directory = save(make("qwen3_vl"), tmp_path)
    with (
        started(directory, max_num_batched_tokens=48, max_num_seqs=4) as engine,
        patch.object(Encoding, "advance", autospec=True, side_effect=Encoding.advance) as advance,
    ):
        tokens = beside_text(engine, "long")
    assert sum(call.args[1] < math.inf for call in advance.call_args_list) > 3
    with started(directory, max_num_batched_tokens=48, max_num_seqs=4) as engine:
        assert generated(engine, ["long"]) == {"long": tokens}


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [Ranks(2, 1), Ranks(1, 2), Ranks(2, 2)], ids=str)
def test_ranks_in_processes_answer_as_one(ranks: Ranks, tmp_path: Path) -> None:
    directory, short = save(make("qwen3_vl"), tmp_path), ("two", "text", "first", "again", "other")
    with engine_of(directory, "float32", None) as engine:
        expected = generated(engine, short)
    with engine_of(directory, "float32", ranks) as engine:
        assert generated(engine, short) == expected
        assert beside_text(engine, "other") == expected["other"]
