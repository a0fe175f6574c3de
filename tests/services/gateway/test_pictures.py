"""Pictures through stock clients: what reaches the processor, and what is refused by name."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from io import BytesIO
from typing import Any

import anthropic
import grpc
import openai
import pytest
from google.rpc import error_details_pb2
from PIL import Image
from ringline.inference.v1 import inference_pb2 as pb

import services.gateway.answer
from tests.clients.scripted_server import play, refusal
from tests.services.gateway.http_harness import CHAT, Running, running
from tests.services.gateway.media.test_fetch import answer, serving

MiB = 1 << 20


def png(side: int = 3) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (side, 2), (9, 8, 7)).save(buffer, "PNG")
    return buffer.getvalue()


PICTURE = png()
BASE64 = base64.b64encode(PICTURE).decode()
URL = f"data:image/png;base64,{BASE64}"
RULE = {"ngram_size": 3, "window_size": 9}
PART: Any = {"type": "image_url", "image_url": {"url": URL}}


def chat(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {**CHAT, "messages": [{"role": role, "content": list(parts)}]}


def sent(gateway: Running, message: int = -1) -> list[Any]:
    """The parts of a message of the last request: texts, and pictures with their type."""
    (*_, request) = gateway.processor.service.requests
    assert "media" in request.requires
    found = request.chat.messages[message]
    assert not found.content
    parts = ((one.text, one.media) for one in found.content_parts)
    return [text or (media.data, media.mime_type) for text, media in parts]


async def test_openais_chats(gateway: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{gateway.address}/v1", api_key="none") as client:
        parts: Any = [
            {"type": "text", "text": "Compare "},
            {"type": "text", "text": "these:"},
            {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
            {"type": "image_url", "image_url": {"url": URL.replace("png", "jpeg")}},
            {"type": "text", "text": "Well?"},
        ]
        messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
        await client.chat.completions.create(model="tiny", messages=messages)
        pictures = [(PICTURE, "image/png"), (PICTURE, "image/jpeg")]
        assert sent(gateway) == ["Compare ", "these:", *pictures, "Well?"]
        assert gateway.processor.service.requests[-1].chat.messages[0].content == "Be brief."
        tool: Any = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "A shot:"}, PART]}
        stream = await client.chat.completions.create(model="tiny", messages=[*messages, tool], stream=True)
        assert [chunk async for chunk in stream]
        assert sent(gateway) == ["A shot:", (PICTURE, "image/png")]


async def test_openais_responses(gateway: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{gateway.address}/v1", api_key="none") as client:
        picture = {"type": "input_image", "image_url": URL, "detail": "auto"}
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c1", "output": [picture]}
        content = [{"type": "input_text", "text": "What"}, picture, {"type": "input_text", "text": "is it?"}]
        items: Any = [{"role": "user", "content": content}, call, result]
        await client.responses.create(model="tiny", input=items)
        assert sent(gateway, 0) == ["What", (PICTURE, "image/png"), "is it?"]
        assert sent(gateway, 2) == [(PICTURE, "image/png")]
        picture["file_id"] = "file-1"
        with pytest.raises(openai.BadRequestError, match=r"input\[0\].content\[1\].file_id: not supported: no files"):
            await client.responses.create(model="tiny", input=items)
        del picture["file_id"]
        await client.responses.input_tokens.count(model="tiny", input=items)
    assert gateway.processor.service.tokenized[-1].chat.messages[0].content_parts[1].media.data == PICTURE


async def test_anthropics_messages(gateway: Running) -> None:
    async with anthropic.AsyncAnthropic(base_url=f"http://{gateway.address}", api_key="none") as client:
        image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
        texts: Any = [{"type": "text", "text": text} for text in ("One.", "Two.", "Three.")]
        use: Any = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
        shown: Any = {"type": "tool_result", "tool_use_id": "t1", "content": [texts[0], image], "is_error": True}
        turns: Any = [
            {"role": "user", "content": [texts[0], texts[1], image, texts[2]]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [shown]},
        ]
        await client.messages.create(model="tiny", messages=turns, max_tokens=4)
        assert sent(gateway, 0) == ["One.\nTwo.", (PICTURE, "image/png"), "Three."]
        assert sent(gateway, 2) == ["Error: One.", (PICTURE, "image/png")]
        await client.messages.count_tokens(model="tiny", messages=turns)
        image["source"] = {"type": "file", "file_id": "f1"}
        with pytest.raises(anthropic.BadRequestError, match=r"content\[2\].source: 'file': expected a source of type"):
            await client.messages.create(model="tiny", messages=turns, max_tokens=4)
    assert gateway.processor.service.tokenized[-1].chat.messages[0].content_parts[1].media.data == PICTURE


async def test_every_api_names_the_picture_that_is_refused(gateway: Running) -> None:
    """The ring's messages and parts have other numbers where turns are joined."""
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
    hello, part = {"type": "text", "text": "Hello"}, {"type": "input_image", "image_url": URL}
    turns = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [hello, hello, image]}]
    items = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [{**hello, "type": "input_text"}, part]}]
    messages = [{"role": "user", "content": [hello, PART]}]
    of_chat, of_items, of_turns = (
        ({"messages": messages}, "messages[0].content[1].image_url.url"),
        ({"input": items}, "input[1].content[1].image_url"),
        ({"messages": turns, "max_tokens": 4}, "messages[1].content[2].source.data"),
    )
    bodies: dict[str, tuple[dict[str, Any], str]] = {
        **dict.fromkeys(("/v1/chat/completions", "/tokenize"), of_chat),
        **dict.fromkeys(("/v1/responses", "/v1/responses/input_tokens"), of_items),
        **dict.fromkeys(("/v1/messages", "/v1/messages/count_tokens"), of_turns),
    }
    field = "chat.messages[0].content_parts[1].media"
    for path, (body, param) in bodies.items():
        violation = error_details_pb2.BadRequest.FieldViolation(field=field)
        details = error_details_pb2.BadRequest(field_violations=[violation])
        status = refusal(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: it is no picture", details)
        gateway.processor.plays(play(status))
        gateway.processor.service.tokenize_refusal = status.refused.status
        reply = await gateway.ask("POST", path, {"model": "tiny", **body})
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["message"]) == (400, f"{param}: it is no picture"), path
        assert error.get("param", param) == param


async def test_fetched_pictures_are_packed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the body is that names them."""
    threads: list[str] = []
    for name in ("_stream", "build_tokenize"):
        work = getattr(services.gateway.answer, name)

        def spy(*given: Any, work: Any = work) -> Any:
            threads.append(threading.current_thread().name)
            return work(*given)

        monkeypatch.setattr(services.gateway.answer, name, spy)
    async with serving(answer(PICTURE)) as web, running(allowed_media_hosts=(f"127.0.0.1:{web.port}",)) as gateway:
        part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{web.port}/a.png"}}
        for path in ("/v1/chat/completions", "/tokenize"):
            assert (await gateway.ask("POST", path, chat(part))).status == 200
            assert (await gateway.ask("POST", path, chat({"type": "text", "text": "Hi"}))).status == 200
    assert [name.startswith("large-body") for name in threads] == [True, False] * 2


async def test_tokens_of_pictures_are_counted_as_others(gateway: Running) -> None:
    reply = await gateway.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": [PART]}]})
    assert reply.status == 200
    assert gateway.processor.service.tokenized[-1].chat.messages[0].content_parts[0].media.data == PICTURE


async def test_pictures_by_url() -> None:
    async with serving(answer(PICTURE)) as web, running(allowed_media_hosts=(f"127.0.0.1:{web.port}",)) as gateway:
        url = f"http://127.0.0.1:{web.port}/a.png"
        part = {"type": "image_url", "image_url": {"url": url}}
        image = {"type": "image", "source": {"type": "url", "url": url}}
        bodies = {
            "/v1/chat/completions": chat({"type": "text", "text": "Hi"}, part),
            "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
            "/v1/messages": {"max_tokens": 4, "messages": [{"role": "user", "content": [image]}]},
        }
        for path, body in bodies.items():
            assert (await gateway.ask("POST", path, body)).status == 200, path
            assert sent(gateway)[-1] == (PICTURE, "")
        tokens = {"messages": [{"role": "user", "content": [part]}]}
        assert (await gateway.ask("POST", "/tokenize", tokens)).status == 200
        assert gateway.processor.service.tokenized[-1].chat.messages[0].content_parts[0].media.data == PICTURE
        assert (await gateway.ask("POST", "/v1/chat/completions", chat(PART, {**part, "image_url": url}))).status == 200
        web.answers[:] = [answer(status="404 Not Found")]
        refused = await gateway.ask("POST", "/v1/chat/completions", chat(PART, part))
        assert (refused.status, refused.error["param"]) == (400, "messages[0].content[1].image_url.url")
        assert "status 404" in refused.error["message"]
        assert gateway.process.load.num_requests == 0
        assert gateway.process.load._bytes == 0


@pytest.mark.parametrize(
    ("part", "param", "text"),
    [
        ({"type": "image_url"}, ".image_url", "missing: expected a data: URL with a picture in base64"),
        ({"type": "image_url", "image_url": {}}, ".image_url.url", "missing"),
        ({"type": "image_url", "image_url": {"url": "data:,x"}}, ".image_url.url", "'data:,x' is no data: URL in"),
        ({"type": "image_url", "image_url": {"url": "data:;base64,a"}}, ".image_url.url", "not base64 after the"),
        ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, ".image_url.url", "'/etc/passwd' is no data: URL"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1"}}, ".image_url.url", "the URL leads to 127.0.0"),
        (
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            ".image_url.detail",
            "not supported: 'low'",
        ),
        ({"type": "image", "image": "/etc/passwd"}, ".type", "not supported: a part of type 'image'; parts of type"),
        ({"type": "image_url", "file_id": "f"}, ".file_id", "not supported: no files are stored"),
    ],
)
async def test_what_is_no_picture_is_refused_by_name(gateway: Running, part: Any, param: str, text: str) -> None:
    refused = await gateway.ask("POST", "/v1/chat/completions", chat({"type": "text", "text": "See"}, part))
    assert refused.status == 400
    assert refused.error["param"] == f"messages[0].content[1]{param}"
    assert refused.error["message"].startswith(f"messages[0].content[1]{param}: {text}")
    assert gateway.processor.service.requests == []


def request_of(data: str, words: str = "") -> bytes:
    parts = [{"type": "text", "text": words}, {"type": "image_url", "image_url": {"url": f"data:;base64,{data}"}}]
    return json.dumps(chat(*parts)).encode()


@pytest.mark.parametrize("slash", ["/", r"\/"])
async def test_a_large_picture_needs_no_larger_limit_of_text(slash: str) -> None:
    async with running(max_message_bytes=2 * MiB, max_media_bytes=8 * MiB) as gateway:
        gateway.processor.service.limits.max_message_bytes = 8 * MiB
        data = "QU/+" * (5 * MiB // 4)
        body = request_of(data, "Hi").replace(b"/", slash.encode())
        assert (await gateway.ask("POST", "/v1/chat/completions", body)).status == 200
        assert sent(gateway) == ["Hi", (base64.b64decode(data), "")]


@pytest.mark.parametrize(
    "body",
    [
        request_of(BASE64, "word " * (2 * MiB // 5)),
        request_of("QUFB" * (2 * MiB // 4) + "!" * 2 * MiB),
        json.dumps({**CHAT, "messages": [{"role": "user", "content": "QUFB" * MiB}]}).encode(),
        json.dumps({**CHAT, "messages": [{"role": "user", "content": ";base64," * (MiB // 2)}]}).encode(),
        b'{"messages":' + b'"data" : "A",' * (MiB // 2) + b"0}",
    ],
    ids=["words", "what is no base64", "a text like base64", "beginnings", "many"],
)
async def test_what_is_no_picture_has_the_limit_of_text(body: bytes) -> None:
    async with running(max_message_bytes=2 * MiB, max_media_bytes=16 * MiB) as gateway:
        refused = await gateway.ask("POST", "/v1/chat/completions", body)
        assert (refused.status, refused.error["code"]) == (413, "too_large")
        assert "more than 2097152 bytes beside pictures" in refused.error["message"]


async def test_a_body_beyond_both_limits_is_not_read() -> None:
    async with running(max_message_bytes=2 * MiB, max_media_bytes=MiB) as gateway:
        refused = await gateway.ask("POST", "/v1/chat/completions", b"", {"content-length": str(3 * MiB + 1)})
        assert (refused.status, refused.error["code"]) == (413, "too_large")
        assert "--max-media-bytes" in refused.error["message"]


async def test_a_large_picture_holds_nobody_up() -> None:
    """The event loop turns while a picture of 8 MiB is read; how fast depends on the machine's other work."""
    async with running() as gateway:
        gateway.processor.service.limits.max_message_bytes = 64 * MiB
        turns = 0
        data = "QUFB" * (8 * MiB // 3)

        asked = asyncio.create_task(gateway.ask("POST", "/v1/chat/completions", request_of(data)))
        began = time.monotonic()
        while not asked.done():
            await asyncio.sleep(0.005)
            turns += 1
        assert (await asked).status == 200
        assert turns >= 5, f"{turns} turns in {time.monotonic() - began:.1f} s"


async def test_the_rule_against_repetitions(gateway: Running) -> None:
    rule = {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [7, 8]}
    own = {"ngram_size": 30, "window_size": 90, "allowed_token_ids": [7, 8]}
    fields: dict[str, Any]
    for fields in ({"vllm_xargs": rule}, {"no_repeat_ngram": own}):
        assert (await gateway.ask("POST", "/v1/chat/completions", CHAT | fields)).status == 200
        request: pb.GenerateRequest = gateway.processor.service.requests[-1]
        found = request.sampling.no_repeat_ngram
        assert (found.ngram_size, found.window_size, list(found.allowed_token_ids)) == (30, 90, [7, 8])
        assert "no_repeat_ngram" in request.requires
    assert (await gateway.ask("POST", "/v1/chat/completions", CHAT | {"vllm_xargs": {"ngram_size": 3}})).status == 200
    assert gateway.processor.service.requests[-1].sampling.no_repeat_ngram.window_size == 100
    for fields in ({"vllm_xargs": {"window_size": 3}}, {"vllm_xargs": {}}, {"no_repeat_ngram_size": 0}):
        assert (await gateway.ask("POST", "/v1/chat/completions", CHAT | fields)).status == 200
        assert not gateway.processor.service.requests[-1].sampling.HasField("no_repeat_ngram")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"vllm_xargs": {"ngram_size": 3, "kv_scale": 2}}, "vllm_xargs.kv_scale"),
        ({"vllm_xargs": {"ngram_size": "3"}}, None),
        (
            {"vllm_xargs": {"ngram_size": 3}, "no_repeat_ngram": {"ngram_size": 3, "window_size": 9}},
            "vllm_xargs.ngram_size",
        ),
        ({"no_repeat_ngram": {"ngram_size": 3}}, "no_repeat_ngram"),
        ({"no_repeat_ngram": RULE | {"size": 1}}, "no_repeat_ngram"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size"),
    ],
)
async def test_another_rule_is_refused(gateway: Running, fields: Any, param: str | None) -> None:
    refused = await gateway.ask("POST", "/v1/chat/completions", CHAT | fields)
    assert (refused.status, refused.error["param"]) == (400, param)
