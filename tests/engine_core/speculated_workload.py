"""Requests for engines that speculate: prompts and answers that repeat themselves, with every option of sampling.

Where few tokens may be drawn, a model of random weights repeats itself as well, at any temperature, so that drafts come
true sometimes, and sometimes not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from engine_core.request import NoRepeatNgram, ReasoningBudget, Request, SamplingParams
from engine_core.startup import StartedEngine

from .answers import Answer, answer_of
from .engines import Outcome

TINY = Path(__file__).parents[2] / "checkpoints" / "tiny"
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
MAX_MODEL_LEN = 192


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, add_special_tokens=False).ids)


STORY = ids_of(
    "Once upon a time there was a small dog named Tom. Tom had a red ball. One day the small dog named Tom saw a cat. "
    "The cat had a red ball too. "
)
COPY = (*STORY, *STORY[: len(STORY) // 2])
"""What comes next has been there."""
FEW = tuple(sorted(set(STORY)))[:4]
MORE = tuple(sorted(set(STORY)))[:9]
EOS, MARKER = 2, 1
ANIMALS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"enum": ["Tom", "Tim", "Ann"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "minItems": 3,
    "maxItems": 4,
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}
SCHEMA = json.dumps({"grammars": [{"json_schema": ANIMALS}]})
LETTERS = json.dumps({"grammars": [{"lark_grammar": "start: /[ab ]{30,60}/"}]})
"""Most of it is free, so that little is forced."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=1.0)

PARAMS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "greedy, scored": replace(GREEDY, logprobs=5, prompt_logprobs=2),
    "0.3": replace(DRAWN, temperature=0.3, seed=1, top_k=20, logprobs=2),
    "1": replace(DRAWN, seed=2, top_p=0.9, top_k=3, logprobs=0),
    "1.5": replace(DRAWN, temperature=1.5, seed=3, allowed_token_ids=FEW, n=2, logprobs=1),
    "all tokens": replace(DRAWN, seed=4, max_tokens=12),
    "min_p": replace(DRAWN, temperature=0.8, seed=5, min_p=0.2),
    "penalties": replace(
        DRAWN, seed=6, allowed_token_ids=MORE, frequency_penalty=0.3, presence_penalty=0.2, repetition_penalty=1.1
    ),
    "rewards": replace(DRAWN, seed=7, frequency_penalty=-1.0, top_k=8, logprobs=1),
    "bans": replace(
        DRAWN, seed=8, allowed_token_ids=MORE, bad_words_token_ids=((FEW[0], FEW[1]), (FEW[2],), MORE[3:6])
    ),
    "bias": replace(DRAWN, seed=9, logit_bias=dict.fromkeys(FEW, 12.0), n=3),
    "stop token": replace(
        DRAWN, seed=10, allowed_token_ids=MORE, stop_token_ids=frozenset(MORE[4:6]), min_tokens=16, max_tokens=60
    ),
    "eos": replace(
        DRAWN,
        seed=11,
        ignore_eos=False,
        allowed_token_ids=(*FEW, EOS),
        logit_bias={EOS: 3.0},
        min_tokens=12,
        max_tokens=90,
    ),
    "budget": replace(DRAWN, seed=12, allowed_token_ids=(*FEW, MARKER), reasoning_budget=ReasoningBudget(9, (MARKER,))),
    "no repeats": replace(DRAWN, seed=13, allowed_token_ids=MORE, no_repeat_ngram=NoRepeatNgram(3, 100), logprobs=0),
    "schema, greedy": replace(GREEDY, grammar=SCHEMA, max_tokens=90, logprobs=1),
    "schema": replace(DRAWN, seed=14, grammar=SCHEMA, max_tokens=90),
    "letters": replace(DRAWN, seed=15, grammar=LETTERS, top_k=6, logprobs=1),
    "one token": replace(GREEDY, max_tokens=1),
    "two tokens": replace(DRAWN, seed=16, max_tokens=2, logprobs=1),
    "to the end of the context": replace(GREEDY, max_tokens=1000),
}
PROMPTS: dict[str, tuple[int, ...]] = {
    name: COPY[: 20 + 7 * place % 40] if place % 3 == 2 else COPY for place, name in enumerate(PARAMS)
}
PROMPTS["to the end of the context"] = (COPY * 4)[: MAX_MODEL_LEN - 20]
Resume = Mapping[str, Mapping[int, tuple[int, ...]]]
Answers = dict[tuple[str, int], Answer]


def requests(names: Collection[str] = PARAMS.keys(), resume: Resume | None = None) -> list[Request]:
    """``resume``: of these requests alone; the part of a name behind a slash is only to tell them apart."""
    return [
        Request(name, PROMPTS[of], PARAMS[of], resume=(resume or {}).get(name, {}))
        for name in (names if resume is None else resume)
        for of in [name.partition("/")[0]]
    ]


def splits(answers: Answers, every: int) -> dict[str, dict[int, tuple[int, ...]]]:
    """Beginnings of all choices, one for each ``every`` tokens: what engines resume."""
    return {
        f"{name}/{choice}/{at}": {choice: tuple(tokens[:at])}
        for place, ((name, choice), (tokens, _, _, _)) in enumerate(answers.items())
        for at in range(1 + place % every, len(tokens), every)
    }


def rest_of(answers: Answers, split: str) -> Answer:
    """What follows that beginning; the prompt's log probabilities are reported again."""
    name, choice, at = split.split("/")
    tokens, logprobs, prompt_logprobs, finish = answers[name, int(choice)]
    whole = [part[place : place + 1] for part in logprobs for place in range(len(part))]
    return tokens[int(at) :], whole[int(at) :], prompt_logprobs, finish


def outcomes_of(engine: StartedEngine, asked: Iterable[Request]) -> dict[tuple[str, int], Outcome]:
    """Run all together to their ends; by name and choice."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    for request in asked:
        engine.core.add(request)
    while engine.core.has_work():
        for output in engine.core.step():
            outcomes.setdefault((output.request_id, output.choice), Outcome()).outputs.append(output)
    return outcomes


def answers_of(engine: StartedEngine, asked: Iterable[Request]) -> Answers:
    return {key: answer_of(outcome) for key, outcome in outcomes_of(engine, asked).items()}
