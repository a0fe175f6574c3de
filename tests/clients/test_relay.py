"""Requests that go on through the library as the contract's messages: what a gateway's caller sees of servers' ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import ringline
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay
from ringline.types.v1 import output_pb2

from tests.clients.scripted_server import (
    Abort,
    Served,
    admitted,
    delta,
    ended,
    hello,
    play,
    refusal,
    scores,
    started,
    status,
)

pytestmark = pytest.mark.usefixtures("short_delays")

LOST = Abort(grpc.StatusCode.UNAVAILABLE, "the processor died")
PROMPT = [4, 5, 6]


@pytest.fixture
async def relay(server: Served) -> AsyncIterator[Relay]:
    async with ringline.AsyncClient(server.address) as client:
        yield Relay(client)


async def responses_to(relay: Relay, **fields: object) -> list[pb.GenerateResponse]:
    return [response async for response in relay.generate(pb.GenerateRequest(request_id="mine", text="Hi", **fields))]


async def test_messages_go_through_as_they_are(server: Served, relay: Relay) -> None:
    expected = [response async for response in hello(pb.GenerateRequest())]
    for response in expected:
        response.request_id = "mine"
    assert await responses_to(relay, requires=["generate"], cache_salt="pepper", timeout_ms=5000) == expected
    (asked,) = server.service.requests
    assert (asked.text, list(asked.requires), asked.cache_salt) == ("Hi", ["generate"], "pepper")
    assert 0 < asked.timeout_ms <= 5000


async def test_a_lost_server_leaves_no_seam(server: Served, relay: Relay) -> None:
    first = admitted(2, prompt_token_ids=PROMPT)
    server.plays(
        play(first, started(), scores(0, 1), delta(0, [10], "a"), delta(0, [20], "x", choice=1), ended(choice=1), LOST),
        play(first, started(), scores(0, 1, 2), delta(1, [11], "b"), ended(completion=2)),
    )
    seen = await responses_to(relay, output=pb.OutputParams(prompt_logprobs=0))
    assert [response.WhichOneof("event") for response in seen] == [
        "admitted",
        "started",
        "prompt_logprobs",
        "delta",
        "delta",
        "choice_finished",
        "started",
        "prompt_logprobs",
        "delta",
        "choice_finished",
        "request_finished",
    ]
    assert not seen[0].admitted.prompt_token_ids, "which nobody asked for"
    part = seen[7].prompt_logprobs
    assert (part.offset, list(part.logprobs.ranks), len(part.logprobs.logprobs)) == (1, [2], 1)
    assert [d.delta.first_position for d in seen if d.HasField("delta") and not d.delta.choice] == [0, 1]
    assert seen[-1].request_finished.usage.completion_tokens == 3
    assert {response.request_id for response in seen} == {"mine"}
    _, again = server.service.requests
    assert list(again.token_ids.ids) == PROMPT
    assert [(one.choice, list(one.token_ids)) for one in again.resume.choices] == [(0, [10])]


async def test_a_choice_that_failed_is_an_event_and_a_request_that_did_is_an_error(
    server: Served, relay: Relay
) -> None:
    problem = status(grpc.StatusCode.INTERNAL, "poison")
    end = ended(output_pb2.FINISH_REASON_ERROR, completion=1, error=problem)
    server.plays(play(admitted(), delta(0, [10], "a"), end))
    seen = await responses_to(relay)
    assert [response.WhichOneof("event") for response in seen[-2:]] == ["choice_finished", "request_finished"]
    assert seen[-2].choice_finished.error == problem
    end = ended(completion=1)
    end[-1].request_finished.usage.media_tokens = 2
    server.plays(play(admitted(), delta(0, [10], "a"), end))
    assert (await responses_to(relay))[-1].request_finished == end[-1].request_finished
    server.plays(play(refusal(grpc.StatusCode.NOT_FOUND, "no such model")))
    with pytest.raises(ringline.NotFound, match="no such model"):
        await responses_to(relay)
    with pytest.raises(ringline.InvalidRequest, match="resume: expected none"):
        await responses_to(relay, resume=pb.Resume())
