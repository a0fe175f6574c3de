"""Parts of messages as lists and as text."""

from __future__ import annotations

from typing import Any

import pytest

from text_core.message_parts import as_parts, as_text, has_pictures

IMAGE = {"type": "image"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def message(content: Any) -> dict[str, Any]:
    return {"role": "user", "name": "n", "content": content}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("as it is", "as it is"),
        ([], []),
        ([IMAGE], "<i>"),
        ([text("a"), IMAGE, text("b"), IMAGE], "<i>\n<i>\na\nb"),
        ([text("a"), text("b")], "a\nb"),
    ],
)
def test_as_text_pictures_come_first_and_each_part_has_a_line(content: Any, expected: Any) -> None:
    assert as_text(message(content), "<i>") == message(expected)


def test_as_parts_a_text_is_one_and_no_text_is_none() -> None:
    assert as_parts(message("a")) == message([text("a")])
    assert as_parts(message("")) == message([])
    assert as_parts(message([IMAGE])) == message([IMAGE])
    assert as_parts({"role": "assistant"}) == {"role": "assistant"}


def test_a_picture_is_seen_in_any_message() -> None:
    assert has_pictures([message("a"), message([text("a"), IMAGE])])
    assert not has_pictures([message("image"), message([text("image"), "image"]), {"role": "assistant"}])
