"""What an engine answered, to the last bit, and what differs between two answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_core.logprobs import Logprobs
from engine_core.request import Finish

from .engines import Outcome

Answer = tuple[list[int], list[Logprobs], list[Logprobs], Finish | None]
"""Tokens, log probabilities, those of the prompt, and the end."""


def answer_of(outcome: Outcome) -> Answer:
    outputs = outcome.outputs
    return (
        outcome.token_ids,
        [each.logprobs for each in outputs if each.logprobs is not None],
        [each.prompt_logprobs for each in outputs if each.prompt_logprobs is not None],
        outputs[-1].finish,
    )


def bits(parts: list[Logprobs]) -> list[tuple[bytes, ...]]:
    """Of each token: 0.0 is not −0.0 here."""
    rows = [part[at : at + 1] for part in parts for at in range(len(part))]
    return [tuple(each.tobytes() for each in (row.logprobs, row.ranks, row.top_ids, row.top_logprobs)) for row in rows]


def differences(one: Mapping[Any, Answer], other: Mapping[Any, Answer]) -> list[str]:
    """What differs, in words."""
    found = [f"{name}: only one of them has it" for name in one.keys() ^ other.keys()]
    for name in one.keys() & other.keys():
        mine, theirs = one[name], other[name]
        parts = ("tokens", mine[0], theirs[0]), ("end", mine[3], theirs[3])
        numbers = ("logprobs", bits(mine[1]), bits(theirs[1])), ("prompt logprobs", bits(mine[2]), bits(theirs[2]))
        found += [f"{name}: {what}" for what, left, right in (*parts, *numbers) if left != right]
    return found
