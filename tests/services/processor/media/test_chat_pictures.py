"""Pictures as clients of the contract send them."""

from __future__ import annotations

import pytest

from services.processor.media.chat_pictures import PictureSource
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
    assert PictureSource("x", b"\x89PNG", kind).read() == (b"\x89PNG", kind)


@pytest.mark.parametrize("head", ["data:image/png,", "data:png;base64,", f"data:image/png;a={'b' * 300};base64,"])
def test_other_urls_are_refused(head: str) -> None:
    with pytest.raises(Refused, match="is no data: URL"):
        PictureSource("x", f"{head}iVBORw==").read()
