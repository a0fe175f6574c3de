"""``/score``: how well texts match, in pairs, as in vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay

from services.gateway.fields import refused, supported
from services.gateway.http.api_error import invalid
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI
from services.gateway.pooling.embeddings import begun, ended
from services.gateway.pooling.endpoint import PoolingEndpoint
from services.gateway.pooling.fields import (
    MAX_INPUTS,
    Given,
    add_inputs,
    answered,
    build,
    is_single,
    missing,
    names_of,
    read_cut,
    read_inputs,
)
from services.gateway.pooling.floats import shortest
from services.gateway.pooling.rerank import ScoreFields

_PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
_TEXTS = Annotated[Given | None, supported("As `queries`, or `documents`.")]
_NO_LABELS = "a score is the model's own; chats and completions have log probabilities"


class ScoreRequest(ScoreFields):
    """The body of ``/score``."""

    queries: Annotated[
        Given | None, supported("What is looked for: a text, token ids, or a list of either, one for each document.")
    ] = None
    documents: Annotated[Given | None, supported(f"A text, token ids, or a list of either: at most {MAX_INPUTS}.")] = (
        None
    )
    items: _TEXTS = None
    text_1: _TEXTS = None
    text_2: _TEXTS = None
    data_1: _TEXTS = None
    data_2: _TEXTS = None
    label_token_ids: Annotated[Any, refused(_NO_LABELS, [])] = None


def _request(body: ScoreRequest, _model: Model | None) -> pb.ScoreRequest:
    first, second = _fields(body)
    asked = build(pb.ScoreRequest, body)
    read_cut(body, asked.options)
    for field, target in ((first, asked.queries), (second, asked.documents)):
        given: Given | None = getattr(body, field)
        add_inputs(target, read_inputs(given, field), field, single=is_single(given))
    if len(asked.queries) not in (1, len(asked.documents)):
        problem = f"{len(asked.queries)}: expected 1, or as many as {second}, of which there are {len(asked.documents)}"
        raise invalid(first, problem)
    return asked


def _fields(body: ScoreRequest) -> tuple[str, str]:
    """The names of the two fields. Raises ``ApiError``."""
    given = [name for name in {name: None for pair in _PAIRS for name in pair} if getattr(body, name) is not None]
    for pair in _PAIRS:
        if set(given) == set(pair):
            return pair
    expected = ", ".join(" and ".join(pair) for pair in _PAIRS)
    if not given:
        raise missing("queries", None, expected)
    raise invalid(given[0], f"{' and '.join(given)} are given: expected two fields, {expected}")


def _names(body: ScoreRequest) -> Callable[[str], str]:
    names = {"truncation": "truncate_prompt_tokens", "max_input_tokens": "truncate_prompt_tokens"}
    single = set()
    for pair in _PAIRS:
        if all(getattr(body, name) is not None for name in pair):
            for ours, theirs in zip(("queries", "documents"), pair, strict=True):
                names[ours] = theirs
                if is_single(getattr(body, theirs)):
                    single.add(ours)
            break
    return names_of([ScoreRequest], names, frozenset(single))


def _write(call: Call, body: ScoreRequest, told: pb.ScoreResponse) -> Iterator[bytes]:
    yield begun(call, "score-", answered(body, told.report))
    yield msgspec.json.encode(
        [{"index": index, "object": "score", "score": score} for index, score in enumerate(shortest(told.scores))]
    )[1:-1]
    yield ended(told.report)


SCORE = PoolingEndpoint(ScoreRequest, Relay.score, _request, _write, _names)
ENDPOINTS = tuple(Endpoint("POST", path, SCORE.answer, OPENAI) for path in ("/score", "/v1/score"))
