"""Whole models with pictures in their prompts, run in steps as a worker runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from engine_core.media import Picture
from tests.engine_core.models.driver import build_model, chosen_attention, open_at
from tests.engine_core.pictures import PictureDriver

Prompt = tuple[list[int], list[tuple[Picture, int]]]


def prompt_of(*parts: int | list[int] | Picture, image_token: int) -> Prompt:
    """Token ids and (picture, offset): so many tokens of text, these tokens, or a picture's placeholders."""
    ids: list[int] = []
    found: list[tuple[Picture, int]] = []
    for part in parts:
        if isinstance(part, Picture):
            found.append((part, len(ids)))
            ids += [image_token] * part.shape.num_tokens
        elif isinstance(part, list):
            ids += part
        else:
            ids += [(31 * (len(ids) + place)) % 180 + 9 for place in range(part)]
    return ids, found


def driver_of(directory: Path, prompts: Sequence[Prompt], dtype: str = "float32") -> PictureDriver:
    """Steps of the checkpoint's model over ``prompts``."""
    checkpoint = open_at(directory, dtype=dtype)
    return PictureDriver(checkpoint, build_model(checkpoint), chosen_attention(), prompts)


def logits_of(directory: Path, prompt: Prompt) -> torch.Tensor:
    """[T, V] of all tokens of ``prompt``, in one step."""
    return driver_of(directory, [prompt]).whole(0)
