"""Pictures as clients of the contract send them."""

from __future__ import annotations

import pytest
from ringline.inference.v1 import inference_pb2 as pb

from services.processor.media.chat_pictures import MAX_SOURCES, PictureSource, check_sources, take_sources
from services.ring.errors import Refused


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("data:image/png;base64,", "image/png"),
        ("DATA:image/PNG;BASE64,", "image/PNG"),
        ("data:;base64,", ""),
        ("data:image/jpeg;charset=utf-8;base64,", "image/jpeg;charset=utf-8"),
        ("data:image;base64,", "image"),
        ("data:image/*;base64,", "image/*"),
    ],
)
def test_data_urls_are_read_with_the_types_that_clients_write(head: str, kind: str) -> None:
    assert PictureSource("x", f"{head}iVBORw==").read() == (b"\x89PNG", kind)
    assert PictureSource("x", f"{head}iVBO\r\nRw==\n").read() == (b"\x89PNG", kind), "in lines"
    assert PictureSource("x", b"\x89PNG", kind).read() == (b"\x89PNG", kind)


@pytest.mark.parametrize("head", ["data:image/png,", "data:png;base64,", f"data:image/png;a={'b' * 300};base64,"])
def test_other_urls_are_refused(head: str) -> None:
    with pytest.raises(Refused, match="is no data: URL"):
        PictureSource("x", f"{head}iVBORw==").read()


def test_what_is_missing_or_too_much_is_named() -> None:
    message = pb.ChatMessage(role="user")
    message.content_parts.add().text = "See:"
    message.content_parts.add().media.data = b"a"
    message.content_parts.add().media.mime_type = "image/png"
    chat = pb.Chat(messages=[message])
    sources = take_sources(chat)
    assert [source.given for source in sources] == [b"a", None]
    assert chat.ByteSize() < message.ByteSize(), "their bytes are gone, their places are not"
    assert [part.WhichOneof("part") for part in chat.messages[0].content_parts] == ["text", "media", "media"]
    with pytest.raises(Refused, match=r"^chat.messages\[0\].content_parts\[2\].media: none is set"):
        check_sources(sources)
    check_sources(sources[:1] * MAX_SOURCES)
    with pytest.raises(Refused, match="more than 1024 pictures"):
        check_sources(sources[:1] * (MAX_SOURCES + 1))
