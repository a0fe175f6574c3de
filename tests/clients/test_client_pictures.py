"""Pictures in messages become parts of the contract, whatever a program has them as."""

import asyncio
import base64
import re
import threading
from io import BytesIO
from pathlib import Path

import pytest
import ringline
from PIL import Image
from ringline import content_parts
from ringline.inference.v1 import inference_pb2 as pb
from ringline.request import build_request, build_tokenize
from ringline.retrying_request import RetryingRequest

from tests.clients.either_client import CLIENTS, answer, connected

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()


def build(content, options=None, role="user"):
    return build_request(None, [{"role": role, "content": content}], None, options or {})


def media(content):
    """The only picture of a content."""
    (part,) = build(content).chat.messages[0].content_parts
    return part.media


def test_texts_and_pictures_keep_their_order():
    content = ["What is ", {"type": "text", "text": "this?"}, PNG, "", {"type": "image", "image": PNG}, "And this?"]
    request = build(content)
    (message,) = request.chat.messages
    assert message.content == ""
    found = [part.text if part.WhichOneof("part") == "text" else part.media.data for part in message.content_parts]
    assert found == ["What is ", "this?", PNG, "", PNG, "And this?"]
    assert list(request.requires) == ["media"]


def test_without_a_picture_texts_are_one_text():
    request = build(["What is ", {"type": "text", "text": "this?"}])
    assert request.chat.messages[0] == pb.ChatMessage(role="user", content="What is this?")
    assert list(request.requires) == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_a_picture(kind):
    assert media([kind(PNG)]) == pb.Media(data=PNG)


def test_a_path_is_read(tmp_path: Path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    assert media([path]) == media([{"type": "image", "image": path}]) == pb.Media(data=PNG)


def test_a_path_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ringline.InvalidRequest, match=r"^messages\[0\]\.content\[0\]: '.*none.png' cannot be read: No"):
        build([tmp_path / "none.png"])
    (tmp_path / "empty.png").touch()
    with pytest.raises(ringline.InvalidRequest, match=r"^messages\[0\]\.content\[0\]: an empty picture"):
        build([tmp_path / "empty.png"])


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "CMYK", "YCbCr"])
def test_a_picture_of_pillow_keeps_its_pixels(mode):
    picture = Image.new("RGB", (3, 2), (200, 10, 30)).convert(mode)
    found = media([picture])
    path = BytesIO(found.data)
    with Image.open(path) as read:
        assert read.format == "PNG"
        assert read.convert("RGB").tobytes() == picture.convert("RGB").tobytes()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
        {"type": "image_url", "image_url": URL},
        {"type": "image", "image": URL},
        {"type": "image", "image": PNG, "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": URL[:60] + "\r\n " + URL[60:]}},
        {"type": "image_url", "image_url": {"url": "DATA:Image/PNG;charset=x;BASE64," + URL.partition(",")[2]}},
    ],
)
def test_other_forms_of_a_picture(part):
    assert media([part]) == pb.Media(data=PNG, mime_type="image/png")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "image", "image": "/etc/passwd"}, ".image: '/etc/passwd' is no data: URL in base64"),
        ({"type": "image", "image": "https://example.com/a.png"}, ".image: the client fetches nothing"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, ".image_url.url: the client fetches"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, ".image_url.url: 'data:image/png,abc' is"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,a!"}}, ".image_url.url: not base64 after"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, ".image_url.url: nothing after"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, ".image_url.detail: 'low' is not support"),
        ({"type": "image", "image": b""}, ".image: an empty picture"),
        (
            {"type": "input_audio"},
            ": a part of type 'input_audio' is not supported: expected parts of type text, image",
        ),
    ],
)
def test_what_is_no_picture_is_refused_by_name(part, text):
    with pytest.raises(ringline.InvalidRequest) as refused:
        build(["Look:", part])
    assert str(refused.value).startswith(f"messages[0].content[1]{text}")
    assert refused.value.field == str(refused.value).partition(": ")[0]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (3, ": expected a dict such as {'type': 'text', 'text': 'Hello'}, a text, or a picture, got int"),
        ({"type": "image", "image": 3}, ".image: expected bytes, a pathlib.Path, a picture of Pillow, or a data: URL"),
        (
            {"type": "image"},
            ".image: expected bytes, a pathlib.Path, a picture of Pillow, or a data: URL, got NoneType",
        ),
        ({"type": "image", "image": PNG, "x": 1}, ": unknown key 'x': expected type and image and mime_type"),
        ({"type": "image_url", "image_url": {"url": 3}}, ".image_url.url: expected a data: URL, got int"),
        ({"type": "image_url", "image_url": {"url": URL, "x": 1}}, ".image_url: unknown key 'x'"),
    ],
)
def test_a_part_of_a_wrong_type_is_a_type_error(part, text):
    with pytest.raises(TypeError, match=f"^{re.escape('messages[0].content[0]' + text)}"):
        build([part])


@pytest.mark.parametrize("line", [1, 3, 76])
def test_base64_is_decoded_by_slices(monkeypatch: pytest.MonkeyPatch, line):
    monkeypatch.setattr(content_parts, "_SLICE", 8)
    for size in range(40):
        data = bytes(range(size))
        text = base64.b64encode(data).decode()
        lines = "\r\n".join(text[at : at + line] for at in range(0, len(text), line))
        assert content_parts.decode_base64(text) == content_parts.decode_base64(f"x,{lines} \n", 2) == data
    for bad in ("QUFBQQ==QUFB", "QUFBQQ==\nQUFB", "QUFBQUF=Q", "QUFBQ", "QUFBQUFBQ=", "QUFB!", "=", "QUFBQUFB===="):
        with pytest.raises(ValueError, match=r"(?i)padding|base64"):
            content_parts.decode_base64(bad)


async def test_pictures_are_packed_in_a_thread(server, monkeypatch: pytest.MonkeyPatch):
    """The event loop has other requests to serve meanwhile."""
    threads = []
    pack = RetryingRequest.next_request

    def spy(self):
        threads.append(threading.current_thread() is threading.main_thread())
        return pack(self)

    monkeypatch.setattr(RetryingRequest, "next_request", spy)
    async with ringline.AsyncClient(server.address) as client:
        for content in ("Hi", [PNG]):
            await client.generate(messages=[{"role": "user", "content": content}])
    assert threads == [True, False]
    assert [bool(one.request_id) for one in server.service.requests] == [True, True]


async def test_who_is_cancelled_while_pictures_are_packed_keeps_no_place(server, monkeypatch: pytest.MonkeyPatch):
    server.service.limits.max_live_requests = 1
    begun, packed, pack = threading.Event(), threading.Event(), RetryingRequest.next_request

    def waiting(self):
        if self.has_pictures:
            begun.set()
            packed.wait(60)
        return pack(self)

    monkeypatch.setattr(RetryingRequest, "next_request", waiting)
    async with ringline.AsyncClient(server.address) as client:
        task = asyncio.create_task(client.generate(messages=[{"role": "user", "content": [PNG]}]))
        assert await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        packed.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.generate("Hi")).text
    assert server.service.sessions == 1, "the next request had to wait for another session"


def test_pictures_are_in_a_tokenization_too():
    request = build_tokenize(None, [{"role": "user", "content": [PNG, "What?"]}], {})
    assert request.chat.messages[0].content_parts[0].media.data == PNG


def test_a_rule_against_repetitions():
    rule: ringline.NoRepeatNgram = {"ngram_size": 30, "window_size": 90, "allowed_token_ids": [7, 8]}
    request = build("Hi", {"no_repeat_ngram": rule})
    found = request.sampling.no_repeat_ngram
    assert (found.ngram_size, found.window_size, list(found.allowed_token_ids)) == (30, 90, [7, 8])
    assert list(request.requires) == ["no_repeat_ngram"]
    assert not build("Hi", {"no_repeat_ngram": None}).sampling.HasField("no_repeat_ngram")


@pytest.mark.parametrize(
    ("rule", "error", "text"),
    [
        (30, TypeError, "no_repeat_ngram: expected a dict such as {'ngram_size': 30, 'window_size': 90}, got int"),
        ({"size": 3}, TypeError, "no_repeat_ngram: unknown key 'size': expected ngram_size, window_size, allowed_tok"),
        ({"ngram_size": 3}, ringline.InvalidRequest, "no_repeat_ngram.window_size: missing: expected a number of tok"),
        ({"ngram_size": "3"}, TypeError, "no_repeat_ngram.ngram_size: expected int, got str"),
    ],
)
def test_another_rule_is_refused(rule, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        build("Hi", {"no_repeat_ngram": rule})


@CLIENTS
async def test_a_picture_goes_to_the_server(server, kind):
    async with connected(kind, server.address) as client:
        await answer(client, lambda: client.generate(messages=[{"role": "user", "content": [PNG, "What is it?"]}]))
    (sent,) = server.service.requests
    assert sent.chat.messages[0].content_parts[0].media.data == PNG
    assert "media" in sent.requires
