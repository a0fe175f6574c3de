"""Requests that limit their reasoning, and an independent count of it in their answers."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.models import MARKERS, OPENING
from tests.chaos.outcome import Outcome
from tests.chaos.workload import HERO, TOOLS, TOPICS, RequestSpec
from text_core.tokenizer import Tokenizer

BUDGETS = (0, 1, 100)
_LINE_BREAKS = ("\n", "\r")
_THINK, _MISTRAL = {"reasoning": "think"}, {"reasoning": "mistral"}


def pool(seed: int, per_kind: int = 4) -> list[RequestSpec]:
    """``per_kind`` requests of every kind; of four or more, each kind has every budget."""
    random_ = random.Random(seed)
    specs = []
    for index in range(per_kind):
        messages = ({"role": "user", "content": f"Tell me a story about {random_.choice(TOPICS)}."},)
        question = ({"role": "user", "content": "What is the weather in Paris?"},)
        seeded = {"temperature": 0.9, "top_p": 0.95, "seed": random_.getrandbits(32)}
        for place, (kind, options) in enumerate(_kinds(seeded).items()):
            budget = BUDGETS[(index + place) % len(BUDGETS)]
            asked = question if "tools" in options else messages
            limited = {"max_reasoning_tokens": budget, "max_tokens": 160, **options}
            specs.append(RequestSpec(f"{kind} {budget}-{index}", None, asked, limited))
    return specs


def _kinds(seeded: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Options by what a request is for; reasoning is begun by the prompt, or may be by the answer."""
    begun = {**seeded, "parse": _THINK, "template_args": {"opens": "<think>"}}
    marked = {**seeded, "parse": _MISTRAL, "template_args": {"opens": "[THINK]"}}
    free = {**seeded, "parse": _THINK}
    return {
        "begun": {**begun, "temperature": 0.0},
        "endless": {**begun, "bad_words": ["</think>"], "ignore_eos": True},
        "opened": {**free, "n": 3, "logit_bias": {OPENING["think"]: 2.0}, "max_tokens": 120},
        "again": {**marked, "ignore_eos": True, "n": 2},
        "sections": {**seeded, "parse": _MISTRAL, "logit_bias": {OPENING["mistral"]: 6.0}, "bad_words": ["[/THINK]"]},
        "scored": {**begun, "bad_words": ["</think>"], "logprobs": 3, "prompt_logprobs": 1},
        "whole": {**begun, "max_tokens": 60},
        "stopped": {**begun, "stop": [" the", "and "], "stop_token_ids": [261], "stop_in_reasoning": False},
        "described": {**begun, "json_schema": HERO},
        "drawn": {**free, "regex": r"([A-Z][a-z]{2,8} ){5,20}end\.", "n": 2, "skip_special_tokens": False},
        "asking": {**begun, "tools": TOOLS, "tool_choice": "required", "bad_words": ["</think>"]},
        "asked": {**marked, "tools": TOOLS, "repetition_penalty": 1.1},
    }


def check(specs: Iterable[RequestSpec], answers: Mapping[str, Outcome], model: Path) -> None:
    """Raise ``AssertionError`` for an answer that exceeds its budget, or whose reasoning was not counted right."""
    tokenizer = Tokenizer.from_directory(model)
    for spec in specs:
        options, outcome = spec.options, answers[spec.name]
        most, form = options["max_reasoning_tokens"], options["parse"]["reasoning"]
        reader = _Reader(tokenizer, form, begun="template_args" in options)
        found = [reader.read(answer.ids) for answer in outcome.choices.values()]
        for reasoning in found:
            assert reasoning.within <= most, f"{spec.name}: {reasoning.within} tokens of reasoning instead of {most}"
            if MARKERS[form][1] in options.get("bad_words", ()):  # so no end is the model's own
                assert not reasoning.ended or reasoning.within == most, f"{spec.name}: {reasoning}"
        counted = sum(reasoning.counted for reasoning in found)
        assert outcome.usage is not None
        assert outcome.usage.reasoning_tokens == counted, f"{spec.name}: {outcome.usage}, but there are {counted}"


@dataclass
class _Reasoning:
    """What an answer has of it."""

    within: int = 0
    """Tokens between markers."""
    counted: int = 0
    """With the markers, and the line breaks behind them."""
    ended: int = 0
    """Markers that end it."""


class _Reader:
    """Finds reasoning by the ids of its markers."""

    def __init__(self, tokenizer: Tokenizer, form: str, *, begun: bool) -> None:
        self._opening, self._closing = (tokenizer.token_id(marker) for marker in MARKERS[form])
        self._text = functools.cache(lambda token: tokenizer.decode([token], skip_special_tokens=True))
        self._anywhere = self._opening in tokenizer.special_token_ids
        self._begun = begun

    def read(self, ids: Sequence[int]) -> _Reasoning:
        found, inside, behind, at_beginning = _Reasoning(), self._begun, False, True
        first = next((at for at, token in enumerate(ids) if not self._text(token).isspace()), 0)
        while ids and not self._text(ids[-1]) and ids[-1] not in (self._opening, self._closing):
            ids = ids[:-1]  # what has no text is part of what follows
        for at, token in enumerate(ids):
            if inside and token == self._opening and at == first:  # begun by the prompt, and again
                found.within = 0
                found.counted = at + 1
            elif inside and token != self._closing:
                found.within += 1
                found.counted += 1
            elif inside:
                inside, behind = False, True
                found.ended += 1
                found.counted += 1
            elif token == self._opening and (self._anywhere or at_beginning):
                inside = True
                found.counted += 1
            else:
                behind = behind and self._text(token)[:1] in _LINE_BREAKS
                found.counted += behind
            at_beginning = at_beginning and self._text(token).isspace()
        return found
