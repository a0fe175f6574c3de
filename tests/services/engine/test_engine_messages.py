"""A Submit as the ring and the core see it."""

from __future__ import annotations

import math
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import sampling_pb2

from engine_core.config import ModelSpec, SchedulerConfig
from engine_core.errors import InvalidRequestError, QueueFullError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.request import BeamSearch, Finish, ReasoningBudget, Request, SamplingParams
from engine_core.request import FinishReason as CoreFinishReason
from engine_core.validation import MAX_CHOICES, validate_request
from services.common.rpc.shared_messages import read_end
from services.engine.engine_messages import end_of, model_message, response_of, status_of, submission_of
from services.engine.submit_limits import check_size, frame_limits
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.events import ChoiceEnd, FinishReason
from services.ring.outbound_link import OutputFrame
from text_core.grammar.constraints import Regex
from text_core.grammar.grammar_text import grammar_of
from text_core.grammar.lark import literal

MODEL = ModelSpec("m", "M", 100, 50, eos_token_ids=(1,), dtype="float32")


def submit(**fields: object) -> engine_pb2.Submit:
    values: dict[str, object] = {"request_id": "1-1", "epoch": 2, "prompt_token_ids": [5, 6], "max_tokens": 9}
    return engine_pb2.Submit(**(values | fields))  # type: ignore[arg-type]


def test_every_field_arrives() -> None:
    sampling = engine_pb2.SamplingParams(
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        min_p=0.125,
        frequency_penalty=1.5,
        presence_penalty=-1.5,
        repetition_penalty=2.5,
        logit_bias={7: -4.0},
        allowed_token_ids=[7, 8],
        seed=2**64 - 1,
        n=3,
    )
    submission = submission_of(
        submit(
            sampling=sampling,
            bad_words=[sampling_pb2.TokenIds(ids=[1, 2])],
            stop_token_ids=[4],
            ignore_eos=True,
            min_tokens=1,
            logprobs=0,
            prompt_logprobs=2,
            reasoning_budget=engine_pb2.ReasoningBudget(
                max_tokens=7, closing=[1], opening=[2, 3], again=[2, 3], blank=[5, 6, 7], begun=True
            ),
            priority=-3,
            tenant="t",
            cache_salt=b"s",
            timeout_ms=1500,
            deliver_to="d",
            output_context=b"c",
            resume=[sampling_pb2.ResumedChoice(choice=2, token_ids=[9]), sampling_pb2.ResumedChoice(choice=0)],
        ),
        MODEL,
        now=100.0,
    )
    others = 2 + 2 + 1 + 2 * 1 + 2 + 1
    assert submission.num_ids == others + 8, "prompt, allowed, stop, biased, bad words, resumed; of the budget"
    assert submission.core_request.core == Request(
        request_id="1-1",
        prompt_token_ids=(5, 6),
        params=SamplingParams(
            temperature=0.5,
            top_k=3,
            top_p=0.25,
            min_p=0.125,
            frequency_penalty=1.5,
            presence_penalty=-1.5,
            repetition_penalty=2.5,
            logit_bias={7: -4.0},
            bad_words_token_ids=((1, 2),),
            allowed_token_ids=(7, 8),
            seed=2**64 - 1,
            n=3,
            max_tokens=9,
            min_tokens=1,
            stop_token_ids=frozenset([4]),
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=2,
            reasoning_budget=ReasoningBudget(7, (1,), (2, 3), (2, 3), frozenset({5, 6, 7}), begun=True),
        ),
        priority=-3,
        tenant="t",
        cache_salt=b"s",
        deadline=101.5,
        resume={2: (9,), 0: ()},
    )
    assert (submission.request_id, submission.epoch, submission.deliver_to) == ("1-1", 2, "d")
    assert (submission.output_context, submission.prompt_tokens, submission.max_tokens) == (b"c", 2, 9)
    assert (submission.logprobs, submission.prompt_logprobs) == (0, 2)
    assert submission.choices == {2: (9,), 0: ()}


@pytest.mark.parametrize(("max_tokens", "taken"), [(9, 9), (2**32 - 1, MODEL.max_model_len - 2)])
def test_no_more_output_is_counted_than_the_context_has_room_for(max_tokens: int, taken: int) -> None:
    assert submission_of(submit(max_tokens=max_tokens), MODEL, now=0.0).max_tokens == taken


def test_what_is_absent_is_neutral() -> None:
    submission = submission_of(submit(), MODEL, now=0.0)
    expected = Request("1-1", (5, 6), SamplingParams(max_tokens=9))
    assert submission.core_request.core == expected
    assert submission.choices == {0: ()}
    assert submission.logprobs is submission.prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sampling": engine_pb2.SamplingParams(n=0)}, "sampling.n"),
        ({"sampling": engine_pb2.SamplingParams(n=2**32 - 1)}, "sampling.n"),
        ({"cache_salt": b"x" * 65}, "cache_salt"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"resume": [sampling_pb2.ResumedChoice()] * 2}, "resume"),
        ({"resume": [sampling_pb2.ResumedChoice(choice=choice) for choice in range(2000)]}, "resume"),
        ({"bad_words": [sampling_pb2.TokenIds(ids=[1])] * 257}, "bad_words"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": [7] * 50}, "prompt_token_ids"),
        ({"prompt_token_ids": [2**32 - 1] * 300_000}, "prompt_token_ids"),
        ({"resume": [sampling_pb2.ResumedChoice(token_ids=[7] * 300_000)]}, "resume[0].token_ids"),
        ({"sampling": engine_pb2.SamplingParams(allowed_token_ids=[7] * 300_000)}, "sampling.allowed_token_ids"),
        (
            {"sampling": engine_pb2.SamplingParams(logit_bias=dict.fromkeys(range(30_000), 1.0))},
            "sampling.logit_bias",
        ),
        ({"bad_words": [sampling_pb2.TokenIds(ids=[7] * 300_000)]}, "bad_words"),
        ({"bad_words": [sampling_pb2.TokenIds(ids=[7] * 5)] * 205}, "bad_words"),
        *(
            ({"reasoning_budget": engine_pb2.ReasoningBudget(**{name: [7] * 300_000})}, f"reasoning_budget.{name}")
            for name in ("opening", "closing", "again", "blank")
        ),
        ({"tenant": "é" * 257}, "tenant"),
        ({"beam_search": {"width": 65}}, "beam_search.width"),
        ({"beam_search": {"width": 2, "early_stopping": 4}}, "beam_search.early_stopping"),
    ],
)
def test_what_the_core_could_not_refuse_cheaply_is_refused_before(fields: dict[str, object], named: str) -> None:
    message = submit(**fields)
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as refused:
            submission_of(message, MODEL, time.monotonic())
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    assert refused.value.status.message.startswith(f"{named}: ")
    assert "expected" in refused.value.status.message or named == "resume"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"bad_words": [sampling_pb2.TokenIds()]}, "bad_words"),
        ({"bad_words": [sampling_pb2.TokenIds(ids=[100])]}, "bad_words"),
        ({"stop_token_ids": [100]}, "stop_token_ids"),
        ({"prompt_token_ids": [100]}, "prompt_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 10}, "min_tokens"),
        ({"resume": [sampling_pb2.ResumedChoice(choice=1)]}, "resume"),
        ({"sampling": engine_pb2.SamplingParams(temperature=2.0**31)}, "sampling.temperature"),
        ({"sampling": engine_pb2.SamplingParams(temperature=math.nan)}, "sampling.temperature"),
        ({"sampling": engine_pb2.SamplingParams(repetition_penalty=2.0**31)}, "sampling.repetition_penalty"),
        ({"sampling": engine_pb2.SamplingParams(top_p=0.0)}, "sampling.top_p"),
        ({"sampling": engine_pb2.SamplingParams(min_p=1.5)}, "sampling.min_p"),
        ({"sampling": engine_pb2.SamplingParams(frequency_penalty=-2.5)}, "sampling.frequency_penalty"),
        ({"sampling": engine_pb2.SamplingParams(presence_penalty=2.5)}, "sampling.presence_penalty"),
        ({"sampling": engine_pb2.SamplingParams(logit_bias={100: 1.0})}, "sampling.logit_bias"),
        ({"sampling": engine_pb2.SamplingParams(logit_bias={1: 101.0})}, "sampling.logit_bias"),
        ({"sampling": engine_pb2.SamplingParams(allowed_token_ids=[100])}, "sampling.allowed_token_ids"),
        ({"beam_search": {"width": 1}, "sampling": engine_pb2.SamplingParams(n=2)}, "sampling.n"),
        ({"beam_search": {"width": 2, "length_penalty": math.nan}}, "beam_search.length_penalty"),
        ({"beam_search": {"width": 2}, "sampling": engine_pb2.SamplingParams(temperature=0.5)}, "sampling.temperature"),
        ({"beam_search": {"width": 2}, "logprobs": 0}, "logprobs"),
    ],
)
def test_what_the_core_refuses_is_named_as_the_contract_names_it(fields: dict[str, object], named: str) -> None:
    core_request = submission_of(submit(**fields), MODEL, time.monotonic()).core_request.core
    assert isinstance(core_request, Request)
    with pytest.raises(InvalidRequestError) as refused:
        validate_request(core_request, MODEL)
    assert status_of(refused.value, 1).message.startswith(f"{named}: ")


def test_the_limits_themselves_are_accepted() -> None:
    at_most = submit(
        bad_words=[sampling_pb2.TokenIds(ids=[7] * 4)] * 256,
        stop_token_ids=range(64),
        cache_salt=b"x" * 64,
        tenant="é" * 256,
        timeout_ms=1,
        prompt_token_ids=[7] * 49,
        min_tokens=9,
        logprobs=20,
        prompt_logprobs=20,
        sampling=engine_pb2.SamplingParams(temperature=2.0**31 - 256, top_k=2**32 - 1, n=128),
    )
    core_request = submission_of(at_most, MODEL, time.monotonic()).core_request.core
    assert isinstance(core_request, Request)
    validate_request(core_request, MODEL)


def test_a_frame_has_room_for_every_choice_that_goes_on() -> None:
    """From the end of a context, with the largest ids and every list full."""
    model = replace(MODEL, vocab_size=1 << 18, max_model_len=1 << 15)
    ids = [model.vocab_size - 1] * (model.max_model_len - 1)
    resume = [sampling_pb2.ResumedChoice(choice=choice, token_ids=ids) for choice in range(MAX_CHOICES)]
    message = submit(prompt_token_ids=ids, resume=resume, sampling=engine_pb2.SamplingParams(n=MAX_CHOICES))
    check_size(message, model)
    assert message.ByteSize() <= frame_limits(model).max_bytes


def test_refusals_of_the_core_have_codes() -> None:
    invalid = status_of(InvalidRequestError("temperature", "is nan; expected a number"), 700)
    assert (invalid.code, invalid.retry_after_ms) == (Code.INVALID_ARGUMENT, None)
    assert "temperature" in invalid.message
    full = status_of(QueueFullError("the queue is full"), 700)
    assert (full.code, full.retry_after_ms) == (Code.RESOURCE_EXHAUSTED, 700)


@pytest.mark.parametrize("finish_reason", CoreFinishReason)
def test_every_end_of_the_core_has_its_cause(finish_reason: CoreFinishReason) -> None:
    assert end_of(Finish(finish_reason, 7), 3) == ChoiceEnd(FinishReason[finish_reason.name], 3, stop_token_id=7)


def test_drafts_are_told_with_the_end_and_speculation_with_the_request() -> None:
    end = end_of(Finish(CoreFinishReason.LENGTH), 9, (4, 2))
    assert end.drafts == (4, 2)
    (finished,) = response_of(OutputFrame(ends=[("7-1", 1, 0, end)])).outputs.finished
    assert (finished.accepted_draft_tokens, finished.rejected_draft_tokens) == (4, 2)
    read = read_end(finished)
    assert read == end
    for fields, expected in (({}, True), ({"speculation": True}, True), ({"speculation": False}, False)):
        assert submission_of(submit(**fields), MODEL, 0.0).core_request.core.speculation is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"width": 3}, BeamSearch(3, 1.0, False)),
        ({"width": 1, "length_penalty": -0.5, "early_stopping": 1}, BeamSearch(1, -0.5, False)),
        ({"width": 64, "length_penalty": 0, "early_stopping": 2}, BeamSearch(64, 0.0, True)),
        ({"width": 2, "early_stopping": 3}, BeamSearch(2, 1.0, None)),
    ],
)
def test_a_search_arrives_and_its_score_is_told(fields: dict[str, Any], expected: BeamSearch) -> None:
    core_request = submission_of(submit(beam_search=fields), MODEL, 0.0).core_request.core
    assert core_request == Request("1-1", (5, 6), SamplingParams(temperature=0.0, max_tokens=9, beam_search=expected))
    validate_request(core_request, MODEL)
    end = end_of(Finish(CoreFinishReason.STOP, 1), 9, beam_score=-0.5)
    (finished,) = response_of(OutputFrame(ends=[("7-1", 1, 0, end)])).outputs.finished
    assert read_end(finished) == end
    assert end.beam_score == -0.5


def test_a_failure_of_a_choice_names_the_constraint_or_is_the_models() -> None:
    end = end_of(Finish(CoreFinishReason.ERROR, error="the logits hold a NaN"), 3)
    assert end == ChoiceEnd(FinishReason.ERROR, 3, error=Status(Code.INTERNAL, "the logits hold a NaN"))
    end = end_of(Finish(CoreFinishReason.ERROR, error="nothing fits", error_field="grammar"), 3)
    assert end.error is not None
    assert (end.finish_reason, end.error.code) == (FinishReason.ERROR, Code.INVALID_ARGUMENT)
    assert (end.error.field, end.error.message) == ("constraint", "constraint: nothing fits")


def test_a_constraint_arrives_and_counts_as_memory() -> None:
    message = submit(constraint={"regex": "ab"}, parse={"reasoning": "think"})
    submission = submission_of(message, MODEL, now=0.0)
    make_grammar = submission.core_request.make_grammar
    assert make_grammar is not None
    assert make_grammar(literal) == grammar_of(Regex("ab"))
    free = submission_of(submit(), MODEL, now=0.0)
    assert free.core_request.make_grammar is None
    assert submission.id_bytes - free.id_bytes >= 4 * message.constraint.ByteSize()


def test_a_constraint_is_refused_where_it_cannot_be_kept() -> None:
    message = submit(constraint={"regex": "a"})
    with pytest.raises(Refused) as refused:
        submission_of(message, MODEL, 0.0, ["generate"])
    assert refused.value.status.reason is Reason.CAPABILITY_MISSING


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"constraint": {"regex": "a" * (2 << 20)}}, "constraint"),
        ({"constraint": {"regex": "a"}, "parse": {"tool_names": ["a" * (1 << 15)]}}, "parse"),
    ],
)
def test_a_constraint_that_is_too_large_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(Refused) as refused:
        submission_of(submit(**fields), MODEL, 0.0)
    assert refused.value.status.field == field


@pytest.mark.parametrize(("num_states", "most"), [(0, 16), (3, 1), (12, 7), (66, 16)])
def test_an_engine_computes_as_many_choices_as_have_slots_for_states(num_states: int, most: int) -> None:
    """Processors prefer others from then on, as long as these have room."""
    cache = KVCacheConfig(64, 16, 1024, num_states=num_states)
    model = model_message(
        MODEL, cache, SchedulerConfig(max_num_seqs=16), tokenizer_digest="", model_digest="", numerics=""
    )
    assert model.max_num_seqs == most
