"""Whole models with pictures in their prompts, run in steps as a worker runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from engine_core.engine import EngineCore
from engine_core.media import MediaItem
from engine_core.request import Request, SamplingParams
from tests.engine_core.engines import started
from tests.engine_core.models.driver import build_model, chosen_attention, open_at
from tests.engine_core.models.greedy import NEAR
from tests.engine_core.pictures import PictureDriver, Prompt


def driver_of(directory: Path, prompts: Sequence[Prompt], dtype: str = "float32") -> PictureDriver:
    """Steps of the checkpoint's model over ``prompts``."""
    checkpoint = open_at(directory, dtype=dtype)
    return PictureDriver(checkpoint, build_model(checkpoint), chosen_attention(), prompts)


def logits_of(directory: Path, prompt: Prompt) -> torch.Tensor:
    """[T, V] of all tokens of ``prompt``, in one step."""
    return driver_of(directory, [prompt]).whole(0)


def continued(core: EngineCore, prompts: Sequence[Prompt], count: int = 24) -> list[list[int]]:
    """The ``count`` tokens with which an engine continues each of ``prompts``, served together."""
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    found: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    for number, (ids, pictures) in enumerate(prompts):
        media = tuple(MediaItem(picture, offset) for picture, offset in pictures)
        core.add(Request(str(number), tuple(ids), params, media=media))
    while core.has_work():
        for output in core.step():
            found[output.request_id] += output.token_ids
    return list(found.values())


def answers(directory: Path, prompts: Sequence[Prompt], count: int = 24, **options: object) -> list[list[int]]:
    """``continued`` by an engine that is started for it."""
    with started(directory, max_model_len=256, **options) as engine:
        return continued(engine.core, prompts, count)


def assert_greedy(logits: torch.Tensor, prompt: Prompt, tokens: Sequence[int]) -> None:
    """``tokens`` are those that ``logits`` [T, V] of the prompt and all of them make greatest."""
    before = logits[len(prompt[0]) - 1 : -1]
    chosen = before.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert (before.max(1).values - chosen < NEAR).all()
