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
from tests.engine_core.engines import started
from tests.engine_core.models.greedy import NEAR
from tests.engine_core.models.tiny_models import compute_token_by_token
from tests.engine_core.pictures import prompt_of
from tests.engine_core.vision.test_qwen_vl import MOST, make, picture_of, processed, save
from tests.engine_core.vision.whole_models import continued

PICTURE_TOKEN = 190
COUNT = 24
SHARED = picture_of(3, 4, 1)
PARTS: dict[str, Sequence[int | Picture]] = {
    "two": (5, SHARED, 6, picture_of(1, 5, 2), 4),
    "text": (21,),
    "first": (picture_of(5, 2, 3), 3),
    "again": (5, SHARED, 9),
    "other": (5, picture_of(3, 4, 4), 9),
    "long": (40, picture_of(7, 9, 5), 2, SHARED, 1),
}
PROMPTS = {name: prompt_of(*parts, image_token=PICTURE_TOKEN) for name, parts in PARTS.items()}


def generated(engine: StartedEngine, names: Sequence[str] = tuple(PROMPTS)) -> dict[str, list[int]]:
    """The tokens of all prompts, run together."""
    return dict(zip(names, continued(engine.core, [PROMPTS[name] for name in names], COUNT), strict=True))


@torch.no_grad()
def logits(model: Any, ids: Sequence[int], pictures: Sequence[tuple[Picture, int]]) -> torch.Tensor:
    """transformers' [T, V]."""
    given: dict[str, Any] = {}
    if pictures:
        each = [processed(picture) for picture, _ in pictures]
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
        ids, pictures = PROMPTS[name]
        assert len(tokens) == COUNT
        assert max(tokens) < PICTURE_TOKEN
        ahead = logits(model, [*ids, *tokens], pictures)[len(ids) - 1 : -1]
        best = ahead.topk(2).values
        chosen = ahead.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert not (best[:, 0] - chosen >= NEAR).any(), name
        decisive.append(best[:, 0] - best[:, 1] >= NEAR)
    assert torch.cat(decisive).float().mean() > 0.9
    assert found["again"] != found["other"], "pictures that differ change nothing"


def beside_text(engine: StartedEngine, name: str) -> list[int]:
    """The tokens of a prompt that comes while others are generated, after one with its picture was cancelled."""
    ids, pictures = PROMPTS[name]
    media = tuple(MediaItem(picture, offset) for picture, offset in pictures)
    greedy = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    core, tokens = engine.core, list[int]()
    core.add(Request("text", (5, 6, 7), SamplingParams(max_tokens=200, ignore_eos=True)))
    while not core.step():
        pass
    core.add(Request("cancelled", tuple(ids), greedy, media=media))
    core.step()
    core.cancel("cancelled")
    core.add(Request(name, tuple(ids), greedy, media=media))
    while len(tokens) < COUNT:
        tokens += [token for output in core.step() if output.request_id == name for token in output.token_ids]
    core.cancel("text")
    return tokens


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
