"""Bad input: a precise error for whoever sent it, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from ringline.inference.v1 import inference_pb2

from tests.ring import Ring
from tests.services.streams import Transcript, ask, generate

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND

Edit = Callable[[inference_pb2.GenerateRequest], object]


def chat(*messages: tuple[str, str], **fields: object) -> inference_pb2.Chat:
    return inference_pb2.Chat(
        messages=[inference_pb2.ChatMessage(role=role, content=content) for role, content in messages],
        **fields,
    )


BAD: dict[str, tuple[Edit, str]] = {
    "empty text": (lambda r: setattr(r, "text", ""), "text"),
    "no prompt": (lambda r: r.ClearField("text"), "prompt"),
    "no ids": (lambda r: r.token_ids.SetInParent(), "token_ids"),
    "prompt too long": (lambda r: r.token_ids.ids.extend([5] * 5000), "prompt"),
    "id out of the vocabulary": (lambda r: r.token_ids.ids.extend([5, 4_000_000_000]), "token_ids[1]"),
    "temperature NaN": (lambda r: setattr(r.sampling, "temperature", float("nan")), "sampling.temperature"),
    "top_p 0": (lambda r: setattr(r.sampling, "top_p", 0.0), "sampling.top_p"),
    "n 0": (lambda r: setattr(r.sampling, "n", 0), "sampling.n"),
    "n huge": (lambda r: setattr(r.sampling, "n", 1 << 31), "sampling.n"),
    "logit_bias out of range": (lambda r: r.sampling.logit_bias.update({5: 1000.0}), "sampling.logit_bias[5]"),
    "logit_bias of no token": (lambda r: r.sampling.logit_bias.update({4_000_000_000: 1.0}), "sampling.logit_bias"),
    "allowed id of no token": (lambda r: r.sampling.allowed_token_ids.append(4_000_000_000), "allowed_token_ids"),
    "max_tokens 0": (lambda r: setattr(r.stopping, "max_tokens", 0), "stopping.max_tokens"),
    "min_tokens above max_tokens": (lambda r: setattr(r.stopping, "min_tokens", 99), "stopping.min_tokens"),
    "10,000 stop strings": (lambda r: r.stopping.stop.extend(map(str, range(10_000))), "stopping.stop"),
    "an empty stop string": (lambda r: r.stopping.stop.extend(["a", ""]), "stopping.stop[1]"),
    "a long stop string": (lambda r: r.stopping.stop.append("x" * 5000), "stopping.stop[0]"),
    "stop id of no token": (lambda r: r.stopping.stop_token_ids.append(4_000_000_000), "stopping.stop_token_ids"),
    "an empty bad word": (lambda r: r.stopping.bad_words.append(""), "stopping.bad_words[0]"),
    "logprobs above the limit": (lambda r: setattr(r.output, "logprobs", 21), "output.logprobs"),
    "prompt_logprobs above the limit": (lambda r: setattr(r.output, "prompt_logprobs", 21), "output.prompt_logprobs"),
    "truncate to nothing": (lambda r: setattr(r, "truncate_prompt_tokens", 0), "truncate_prompt_tokens"),
    "timeout 0": (lambda r: setattr(r, "timeout_ms", 0), "timeout_ms"),
    "a long cache salt": (lambda r: setattr(r, "cache_salt", "x" * 1000), "cache_salt"),
    "a chat without messages": (lambda r: r.chat.SetInParent(), "chat.messages"),
    "a message without role": (lambda r: r.chat.CopyFrom(chat(("", "hi"))), "chat.messages[0].role"),
    "tools that are no JSON": (lambda r: r.chat.CopyFrom(chat(("user", "hi"), tools_json="{")), "chat.tools_json"),
    "tools that are no list": (lambda r: r.chat.CopyFrom(chat(("user", "hi"), tools_json="{}")), "chat.tools_json"),
    "arguments that are no object": (
        lambda r: r.chat.CopyFrom(chat(("user", "hi"), template_args_json="[]")),
        "chat.template_args_json",
    ),
    "an unknown template": (lambda r: r.chat.CopyFrom(chat(("user", "hi"), template_name="nope")), "chat"),
    "prompt and continuation at once": (
        lambda r: r.chat.CopyFrom(chat(("user", "hi"), add_generation_prompt=True, continue_final_message=True)),
        "chat.continue_final_message",
    ),
    "resume of a choice there is not": (
        lambda r: (setattr(r.sampling, "seed", 1), r.resume.choices.add(choice=3)),
        "resume.choices[0].choice",
    ),
    "resume twice": (
        lambda r: (setattr(r.sampling, "seed", 1), r.resume.choices.add(choice=0), r.resume.choices.add(choice=0)),
        "resume.choices[1].choice",
    ),
    "resume without the model": (
        lambda r: (setattr(r.sampling, "seed", 1), r.resume.choices.add(choice=0, token_ids=[5])),
        "resume.model_digest",
    ),
    "resume of nothing": (lambda r: r.resume.SetInParent(), "resume.choices"),
    "resume without a seed": (lambda r: r.resume.choices.add(choice=0), "sampling.seed"),
}


@pytest.mark.parametrize("name", BAD)
async def test_invalid_fields_are_named(front, name: str) -> None:
    edit, field = BAD[name]
    request = ask("bad", max_tokens=8)
    edit(request)
    transcript = Transcript()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(front, request, transcript)
    assert caught.value.code() is INVALID
    assert field in caught.value.details()
    assert (transcript.ends, transcript.finished) == ({}, None), "the refusal is all that comes"
    assert transcript.refused.status.message == caught.value.details()
    details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    assert status_pb2.Status.FromString(details) == transcript.refused.status
    violations = error_details_pb2.BadRequest()
    assert any(detail.Unpack(violations) for detail in transcript.refused.status.details)
    assert field in violations.field_violations[0].field


async def test_an_unknown_model_is_not_found(front) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(front, ask(model="gpt-17"))
    assert caught.value.code() is NOT_FOUND


async def test_what_a_request_requires_is_known_or_refused_by_name(front) -> None:
    (model,) = (await front.ListModels(inference_pb2.ListModelsRequest())).models
    request = ask(max_tokens=2)
    request.requires.extend(model.capabilities)
    assert (await generate(front, request)).finished is not None
    request.requires.append("constraint.regex")
    transcript = Transcript()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(front, request, transcript)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    info = error_details_pb2.ErrorInfo()
    assert transcript.refused.status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("ringline", "CAPABILITY_MISSING")
    assert "'constraint.regex'" in transcript.refused.status.message


async def test_errors_belong_to_their_requests(front) -> None:
    call = front.Session(timeout=250)
    frames = [
        inference_pb2.SessionRequest(generate=ask("good", max_tokens=8)),
        inference_pb2.SessionRequest(),
        inference_pb2.SessionRequest(generate=ask("", max_tokens=8)),
        inference_pb2.SessionRequest(generate=ask("hot", max_tokens=8, temperature=-1.0)),
        inference_pb2.SessionRequest(cancel=inference_pb2.CancelRequest(request_id="nobody")),
        inference_pb2.SessionRequest(generate=ask("also good", max_tokens=8)),
    ]
    for frame in frames:
        await call.write(frame)
    refused: dict[int, str] = {}
    transcripts = {"good": Transcript(), "also good": Transcript()}
    async for frame in call:
        for response in frame.responses:
            if response.in_reply_to:
                refused[response.in_reply_to] = response.refused.status.message
            else:
                transcripts[response.request_id].add(response)
        if len(refused) == 3 and all(one.complete for one in transcripts.values()):
            break
    assert sorted(refused) == [2, 3, 4]
    assert "frame" in refused[2]
    assert "request_id" in refused[3]
    assert "sampling.temperature" in refused[4]


async def test_garbage_on_the_port(front, ring: Ring) -> None:
    host, port = ring.address.rsplit(":", 1)

    def throw() -> None:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 64)

    await asyncio.to_thread(throw)
    assert (await generate(front, ask(max_tokens=2))).complete


async def test_tokenize_and_detokenize_refuse_by_name(front) -> None:
    cases = [
        (front.Tokenize, inference_pb2.TokenizeRequest(), "input"),
        (front.Tokenize, inference_pb2.TokenizeRequest(chat=inference_pb2.Chat()), "chat.messages"),
        (front.Detokenize, inference_pb2.DetokenizeRequest(token_ids=[1, 4_000_000_000]), "token_ids[1]"),
    ]
    for method, request, field in cases:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request)
        assert caught.value.code() is INVALID
        assert field in caught.value.details()
