"""A search by beams is resolved for the engine, or refused by the field that cannot go with it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1.sampling_pb2 import BeamSearch

from services.processor.admission.request_resolution import resolve_request
from services.processor.request import ResolvedRequest
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import BEAM_SEARCH, PeerId
from tests.services.processor.model_specs import served_model

BEAMS = {"width": 4}
THINK = {"tool_calls": "none", "reasoning": "think"}


def resolve(*, capable: bool = True, max_num_seqs: int = 64, defaults: Any = None, **fields: Any) -> ResolvedRequest:
    """``defaults``: the model's own."""
    served = served_model(**(defaults or {}))
    served.model.max_num_seqs = max_num_seqs
    served.model.capabilities.extend([BEAM_SEARCH] if capable else [])
    request = inference_pb2.GenerateRequest(text="abc", **fields)
    return resolve_request(request, served, "", PeerId("processor-0", 77))


def refusal(**fields: Any) -> str:
    with pytest.raises(Refused) as refused:
        resolve(**fields)
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    return refused.value.status.message


def test_every_field_of_a_search_is_resolved() -> None:
    early = BeamSearch.EARLY_STOPPING_NEVER
    for given, expected in (
        (BEAMS, BeamSearch(width=4, length_penalty=1, early_stopping=BeamSearch.EARLY_STOPPING_NO)),
        (
            {"width": 1, "length_penalty": -0.5, "early_stopping": early},
            BeamSearch(width=1, length_penalty=-0.5, early_stopping=early),
        ),
        ({"width": 64, "length_penalty": 0}, BeamSearch(width=64, length_penalty=0, early_stopping=1)),
    ):
        resolved = resolve(beam_search=given)
        assert resolved.submit.beam_search == resolved.admitted.beam_search == expected
        assert list(resolved.submit.requires) == [BEAM_SEARCH]
        assert BEAM_SEARCH in resolved.needs.engine
        assert BEAM_SEARCH in resolved.needs.detokenizer  # an older one would lose the scores
    assert not resolve().submit.HasField("beam_search")


def test_the_model_s_defaults_of_drawing_do_not_count_and_there_is_no_seed() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.5}
    resolved = resolve(beam_search=BEAMS, defaults=defaults, sampling={"n": 2})
    sampling = resolved.admitted.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0, 0, 1, 0)
    assert (sampling.repetition_penalty, sampling.n) == (1.5, 2)
    assert not sampling.HasField("seed")
    assert resolved.submit.sampling.seed == 0


def test_a_resume_takes_what_admitted_said() -> None:
    first = resolve(beam_search=BEAMS, sampling={"n": 3})
    admitted = first.admitted
    fields = {"beam_search": admitted.beam_search, "sampling": admitted.sampling, "stopping": admitted.stopping}
    resume = {"choices": [{"choice": 1, "token_ids": [5]}, {"choice": 2}], "model_digest": admitted.model_digest or "m"}
    resumed = resolve(**fields, resume=resume)
    for name in ("beam_search", "sampling", "max_tokens", "requires"):
        assert getattr(resumed.submit, name) == getattr(first.submit, name), name
    assert {choice: list(ids) for choice, ids in resumed.choices.items()} == {1: [5], 2: []}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampling": {"seed": 0}}, "sampling.seed: set beside beam_search, which draws nothing: leave it out"),
        (
            {"sampling": {"temperature": 0.5}},
            "sampling.temperature: set beside beam_search, which draws nothing: expected 0, or leave it out",
        ),
        (
            {"sampling": {"top_k": 5}},
            "sampling.top_k: set beside beam_search, which draws nothing: expected 0, or leave it out",
        ),
        ({"sampling": {"n": 5}}, "sampling.n: 5 is out of range: expected at most beam_search.width, 4"),
        (
            {"stopping": {"stop": ["x"]}},
            "stopping.stop: set beside beam_search, whose beams end with tokens (stop_token_ids) or at max_tokens: "
            "leave it out",
        ),
        (
            {"output": {"logprobs": 0}},
            "output.logprobs: set beside beam_search, which reports the score of each choice alone: leave it out",
        ),
        (
            {"sampling": {"presence_penalty": 1}},
            "sampling.presence_penalty: set beside beam_search, which has repetition_penalty alone: leave it out",
        ),
        (
            {"sampling": {"no_repeat_ngram": {"ngram_size": 3, "window_size": 9}}},
            "sampling.no_repeat_ngram: set beside beam_search, which has repetition_penalty alone: leave it out",
        ),
        (
            {"output": {"prompt_logprobs": 0}},
            "output.prompt_logprobs: set beside beam_search, which reports the score of each choice alone: leave it "
            "out",
        ),
        ({"beam_search": {}}, "beam_search.width: 0 is out of range: expected 1 to 64"),
        ({"beam_search": {"width": 65}}, "beam_search.width: 65 is out of range: expected 1 to 64"),
        (
            {"beam_search": {"width": 9}, "max_num_seqs": 8},
            "beam_search.width: 9 is out of range: expected 1 to 8, the choices that this model's engine computes in "
            "one step",
        ),
        (
            {"beam_search": {"width": 2, "length_penalty": math.inf}},
            "beam_search.length_penalty: inf is out of range: expected -5 to 5",
        ),
        (
            {"beam_search": {"width": 2, "early_stopping": 9}},
            "beam_search.early_stopping: 9 is unknown: expected EARLY_STOPPING_UNSPECIFIED, EARLY_STOPPING_NO, "
            "EARLY_STOPPING_YES, EARLY_STOPPING_NEVER",
        ),
        (
            {"stopping": {"stop_token_ids": [5]}, "output": {"parse": THINK}},
            "stopping.stop_token_ids: set beside beam_search, whose beams they end within the reasoning, too: set "
            "stop_in_reasoning",
        ),
    ],
)
def test_what_a_search_cannot_keep_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    assert refusal(**({"beam_search": BEAMS} | fields)) == message


def test_what_changes_nothing_is_taken() -> None:
    neutral = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0}
    stopping = {"stop_token_ids": [5], "stop_in_reasoning": True}
    resolved = resolve(beam_search=BEAMS, sampling=neutral, stopping=stopping, output={"parse": THINK})
    assert list(resolved.submit.stop_token_ids) == [5]


def test_an_engine_that_cannot_search_is_not_asked() -> None:
    with pytest.raises(Refused) as refused:
        resolve(capable=False, beam_search=BEAMS)
    assert (refused.value.status.code, refused.value.status.reason) == (
        Code.FAILED_PRECONDITION,
        Reason.CAPABILITY_MISSING,
    )


def test_speculation_is_told_to_the_engine_only_where_a_client_says_it() -> None:
    assert not resolve().submit.HasField("speculation")
    for given in (False, True):
        submit: engine_pb2.Submit = resolve(speculation=given).submit
        assert submit.HasField("speculation")
        assert submit.speculation is given
