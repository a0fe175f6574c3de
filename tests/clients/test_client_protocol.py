"""What both clients make of a request's responses, good and bad; the server is real, its answers are scripted."""

import asyncio

import grpc
import pytest
import ringline
from google.rpc import error_details_pb2
from ringline import Admitted, Delta, Finished, Prefill, PromptLogprobs, Started, TokenLogprob, Usage
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2

from tests.clients.scripted_server import (
    Abort,
    Cut,
    admitted,
    delta,
    ended,
    forever,
    play,
    refusal,
    scores,
    started,
    status,
)


async def test_an_answer_is_streamed_and_whole(server, ask):
    outcome = await ask()
    assert [type(event) for event in outcome.events] == [Admitted, Delta, Delta, Delta, Finished]
    assert outcome.events[2] == Delta(0, 1, ", wor", (11, 12), None)
    generation = outcome.generation
    assert (generation.text, generation.token_ids) == ("Hello, world", (10, 11, 12, 13))
    assert (generation.finish_reason, generation.stop) == ("stop", 13)
    assert generation.usage == Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=4)
    assert generation.request.options["seed"] == 7
    assert generation.request.options["temperature"] == 0
    assert server.service.requests[0].text == "Hi"


async def test_choices_are_kept_apart(server, ask):
    server.plays(
        play(
            admitted(n=2),
            delta(0, [1], "a", choice=1),
            delta(0, [2], "b", choice=0),
            delta(1, [3], "c", choice=1),
            ended(choice=1, reason=output_pb2.FINISH_REASON_STOP, stop_string="END"),
            delta(1, [4], "d", choice=0),
            ended(choice=0, completion=4),
        )
    )
    first, second = (await ask(n=2)).generation.choices
    assert (first.text, first.token_ids, first.finish_reason, first.stop) == ("bd", (2, 4), "length", None)
    assert (second.text, second.token_ids, second.finish_reason, second.stop) == ("ac", (1, 3), "stop", "END")


async def test_everything_a_request_may_report_becomes_an_event(server, ask):
    packed = output_pb2.Logprobs(
        logprobs=[-0.5, -1.5], ranks=[1, 2], top_count=2, top_ids=[5, 6, 7, 8], top_logprobs=[-0.5, -1.0, -0.25, -1.5]
    )
    server.plays(
        play(
            admitted(prompt_token_ids=[1, 2, 3]),
            pb.GenerateResponse(prefill=pb.PrefillProgress(computed_tokens=2, cached_tokens=1)),
            pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(logprobs=packed)),
            delta(0, [5, 8], "ab", logprobs=packed),
            started("engine died"),
            delta(2, [9], "c", logprobs=output_pb2.Logprobs(logprobs=[-2.0], ranks=[3])),
            ended(completion=3),
        )
    )
    outcome = await ask(logprobs=2, return_prompt_token_ids=True)
    unpacked = (TokenLogprob(-0.5, 1, ((5, -0.5), (6, -1.0))), TokenLogprob(-1.5, 2, ((7, -0.25), (8, -1.5))))
    assert outcome.events[1:3] == [Prefill(2, 1), PromptLogprobs(0, unpacked)]
    assert outcome.events[4] == Started("model", "numerics", identical=True, reason="engine died")
    assert outcome.generation.logprobs == (*unpacked, TokenLogprob(-2.0, 3, ()))
    kept = outcome.generation.logprobs
    assert (len(kept), kept[-1], kept[0], kept[:2]) == (3, TokenLogprob(-2.0, 3, ()), unpacked[0], unpacked)
    assert (repr(kept), kept != unpacked) == (repr((*unpacked, kept[2])), True)
    with pytest.raises(IndexError):
        kept[3]
    assert outcome.generation.prompt_logprobs == unpacked
    assert outcome.generation.request.prompt_token_ids == (1, 2, 3)


async def test_a_prompt_without_log_probabilities_to_report_is_not_one_that_was_not_asked(server, ask):
    first = admitted()
    first.admitted.output.prompt_logprobs = 0
    server.plays(play(first, delta(0, [5], "a"), ended(completion=1)))
    assert (await ask(prompt_logprobs=0)).generation.prompt_logprobs == ()


BREACHES = {
    "a gap of positions": [admitted(), delta(0, [1], "a"), delta(2, [2], "b")],
    "a repeated position": [admitted(), delta(0, [1, 2], "ab"), delta(1, [2], "b")],
    "a delta before admitted": [delta(0, [1], "a")],
    "a second admitted": [admitted(), admitted()],
    "a delta of an unknown choice": [admitted(n=1), delta(0, [1], "a", choice=1)],
    "a second end of a choice": [admitted(n=2), *ended(choice=0), *ended(choice=0)],
    "a delta after its end": [admitted(n=2), *ended(choice=0), delta(0, [1], "a", choice=0)],
    "an end before that of its choices": [admitted(n=2), *ended(completion=0)],
    "usage that counts more": [admitted(), delta(0, [1], "a"), *ended(completion=2)],
    "a refusal after admitted": [admitted(), refusal(grpc.StatusCode.INTERNAL, "late")],
    "misaligned log probabilities": [
        admitted(),
        delta(0, [1, 2], "ab", logprobs=output_pb2.Logprobs(logprobs=[-1.0], ranks=[1])),
    ],
    "prompt log probabilities that are missing": [admitted(), scores(1, 1)],
}


async def test_what_a_later_version_may_send_is_passed_over(server, ask):
    later = pb.GenerateResponse.FromString(b"\xa2\x06\x02\x08\x01")  # field 100: an event of another version
    server.plays(play(later, admitted(), later, delta(0, [1], "a"), later, *ended(completion=1)))
    assert (await ask()).generation.text == "a"


async def test_an_unknown_finish_reason_is_never_success(server, ask):
    server.plays(play(admitted(), delta(0, [1], "a"), *ended(reason=77, completion=1)))
    outcome = await ask()
    assert type(outcome.error) is ringline.ServerError
    assert outcome.error.partial.choices[0].finish_reason == "error"


@pytest.mark.parametrize("responses", BREACHES.values(), ids=BREACHES.keys())
async def test_a_breach_of_the_protocol_is_an_error(server, ask, responses):
    server.plays(play(*responses, Cut()))
    outcome = await ask()
    assert type(outcome.error) is ringline.ProtocolError
    assert len(server.service.requests) == 1


async def test_an_end_after_the_last_is_an_error_of_a_call(server):
    server.plays(play(admitted(), ended(completion=0), ended(completion=0)))
    with ringline.Client(server.address) as client, pytest.raises(ringline.ProtocolError):
        await asyncio.to_thread(client.generate, "Hi")


@pytest.mark.parametrize("end", [Cut(), Abort(grpc.StatusCode.UNAVAILABLE), Abort(grpc.StatusCode.INTERNAL)])
@pytest.mark.parametrize("before", [[], [delta(0, [1, 2], "ab")]])
async def test_a_stream_without_a_terminal_is_never_success(server, ask, end, before):
    server.plays(play(admitted(n=2), ended(choice=1), *before, end))
    outcome = await ask()
    assert type(outcome.error) is ringline.Truncated
    assert isinstance(outcome.error, ringline.Unavailable)
    cut, finished = outcome.error.partial.choices
    assert cut.finish_reason is None
    assert cut.text == outcome.text == "ab" * len(before)
    assert finished.finish_reason == "length"
    assert outcome.error.partial.request.options["seed"] == 7
    assert len(server.service.requests) == 1


async def test_a_choice_that_fails_fails_the_request_after_the_others_end(server, ask):
    server.plays(
        play(
            admitted(n=2),
            delta(0, [1], "a", choice=0),
            ended(output_pb2.FINISH_REASON_ERROR, choice=0, error=status(grpc.StatusCode.INTERNAL, "broken")),
            delta(0, [2], "b", choice=1),
            ended(choice=1, completion=2),
        )
    )
    outcome = await ask(n=2)
    assert type(outcome.error) is ringline.ServerError
    assert "broken" in str(outcome.error)
    assert [choice.text for choice in outcome.error.partial.choices] == ["a", "b"]
    assert outcome.error.partial.usage == Usage(3, 1, 2)
    ends = [event for event in outcome.events if isinstance(event, Finished)]
    assert [end.reason for end in ends] == ["error", "length"]


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (output_pb2.FINISH_REASON_DEADLINE, ringline.DeadlineExceeded),
        (output_pb2.FINISH_REASON_CANCELLED, ringline.Cancelled),
    ],
)
async def test_an_end_that_is_not_an_answer_raises_with_what_was_delivered(server, ask, cause, kind):
    server.plays(play(admitted(), delta(0, [1], "a"), ended(cause, completion=1)))
    outcome = await ask()
    assert type(outcome.error) is kind
    assert outcome.error.partial.choices[0].text == "a"
    assert outcome.error.partial.usage.completion_tokens == 1


REFUSALS = [
    (grpc.StatusCode.INVALID_ARGUMENT, ringline.InvalidRequest),
    (grpc.StatusCode.NOT_FOUND, ringline.NotFound),
    (grpc.StatusCode.FAILED_PRECONDITION, ringline.FailedPrecondition),
    (grpc.StatusCode.PERMISSION_DENIED, ringline.PermissionDenied),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, ringline.Overloaded),
    (grpc.StatusCode.DEADLINE_EXCEEDED, ringline.DeadlineExceeded),
    (grpc.StatusCode.INTERNAL, ringline.ServerError),
]


@pytest.mark.parametrize(("code", "kind"), REFUSALS, ids=[code.name for code, _ in REFUSALS])
async def test_a_refusal_becomes_its_error_and_is_not_repeated(server, ask, code, kind):
    server.plays(play(refusal(code, "no")))
    outcome = await ask()
    assert type(outcome.error) is kind
    assert outcome.error.code is code
    assert outcome.error.partial is None
    assert len(server.service.requests) == 1


async def test_a_refusal_is_read_from_its_details_and_not_from_its_text(server, ask):
    violation = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p")
    detail = error_details_pb2.BadRequest(field_violations=[violation])
    info = error_details_pb2.ErrorInfo(domain="ringline", reason="INVALID_FIELD")
    foreign = error_details_pb2.ErrorInfo(domain="elsewhere", reason="INVALID_FIELD")
    server.plays(
        play(refusal(grpc.StatusCode.INVALID_ARGUMENT, "out of range", info, detail)),
        play(refusal(grpc.StatusCode.INVALID_ARGUMENT, "stopping.stop: an empty string", foreign)),
    )
    for field, reason in (("sampling.top_p", "INVALID_FIELD"), (None, None)):
        error = (await ask()).error
        assert (error.field, error.reason) == (field, reason)


async def test_a_timeout_is_sent_and_kept_even_if_the_server_does_not(server, ask, monkeypatch):
    monkeypatch.setattr("ringline.retry.GRACE", 0.05)
    server.plays(forever)
    for seconds in (1.5, 10, 60):  # longer where the first tokens took all of it
        outcome = await ask(timeout=seconds)
        if outcome.text:
            break
    assert type(outcome.error) is ringline.DeadlineExceeded
    assert isinstance(outcome.error, TimeoutError)
    assert outcome.error.partial.choices[0].text == outcome.text != ""
    assert 0 < server.service.requests[-1].timeout_ms <= seconds * 1000
