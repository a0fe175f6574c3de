"""Pictures go to an engine once, before their requests, and in turns."""

from __future__ import annotations

from itertools import count

import pytest
from ringline.engine.v1 import engine_pb2

from services.common.links.media_uploads import CHUNK_BYTES, MediaUploads
from text_core.pictures.base import ItemPlan
from text_core.pictures.prepared import PreparedItem, PreparedView

WIDTH = 512
PICTURES = count()


def picture(rows: int = 8) -> PreparedItem:
    pixels = bytes([next(PICTURES)]) * (rows * WIDTH * 3)
    plan = ItemPlan((), num_tokens=4)
    return PreparedItem.of(plan, [PreparedView(WIDTH, rows, pixels)])


def taken(uploads: MediaUploads) -> str:
    """What is sent next: ``"submit"`` frames as they were given, and digests of first and further chunks."""
    if (frame := uploads.next()) is None:
        return "nothing"
    if not frame.startswith(b"\x12"):  # AttachRequest.commands
        return frame.decode()
    chunk = engine_pb2.AttachRequest.FromString(frame).commands[0].media
    return f"{'first' if chunk.HasField('header') else 'more'} {chunk.digest.hex()[:8]}"


def name(one: PreparedItem) -> str:
    return one.digest.hex()[:8]


@pytest.fixture
def uploads() -> MediaUploads:
    return MediaUploads()


def test_a_picture_goes_in_chunks_that_make_it_again(uploads: MediaUploads) -> None:
    one = picture(400)
    uploads.add("r", [one], b"submit")
    chunks = []
    while (frame := uploads.next()) != b"submit":
        assert frame is not None
        chunks.append(engine_pb2.AttachRequest.FromString(frame).commands[0].media)
    assert [chunk.HasField("header") for chunk in chunks] == [True, False, False]
    assert max(len(chunk.data) for chunk in chunks) == CHUNK_BYTES
    assert b"".join(chunk.data for chunk in chunks) == one.views[0].pixels
    assert (chunks[0].header.num_tokens, chunks[0].header.views[0].height) == (4, 400)
    assert (taken(uploads), bool(uploads)) == ("nothing", False)


def test_a_picture_goes_once_for_all_requests_that_have_it(uploads: MediaUploads) -> None:
    one = picture()
    uploads.add("a", [one, one], b"a")
    uploads.add("b", [one], b"b")
    assert [taken(uploads) for _ in range(4)] == [f"first {name(one)}", "b", "a", "nothing"]
    assert uploads.holds([one.digest])


def test_requests_take_turns_by_the_picture(uploads: MediaUploads) -> None:
    first, second, other = picture(), picture(), picture()
    uploads.add("many", [first, second], b"many")
    uploads.add("few", [other], b"few")
    order = [f"first {name(one)}" for one in (first, other, second)]
    assert [taken(uploads) for _ in range(6)] == [*order, "few", "many", "nothing"]


def test_a_request_that_ended_is_not_submitted_and_its_other_pictures_stay(uploads: MediaUploads) -> None:
    large, other = picture(400), picture()
    uploads.add("r", [large, other], b"submit")
    assert taken(uploads) == f"first {name(large)}"
    uploads.withdraw("r")
    uploads.withdraw("r")
    assert [taken(uploads) for _ in range(3)] == [f"more {name(large)}"] * 2 + ["nothing"]
    assert uploads.holds([large.digest])
    assert not uploads.holds([other.digest])
    assert uploads._chunks is None, "nothing keeps its pixels"


def test_a_later_submit_of_a_request_takes_the_place_of_the_earlier(uploads: MediaUploads) -> None:
    one = picture()
    uploads.add("r", [one], b"epoch 1")
    uploads.add("r", [one], b"epoch 2")
    assert [taken(uploads) for _ in range(3)] == [f"first {name(one)}", "epoch 2", "nothing"]


def test_what_the_engine_says_counts(uploads: MediaUploads) -> None:
    one, two = picture(), picture()
    uploads.changed([one.digest, two.digest], [])
    assert uploads.holds([one.digest, two.digest])
    uploads.changed([], [two.digest])
    uploads.add("r", [one, two], b"submit")
    assert [taken(uploads) for _ in range(2)] == [f"first {name(two)}", "submit"]
    uploads.missed([one.digest])
    assert not uploads.holds([one.digest])


def test_nothing_is_known_of_the_next_stream(uploads: MediaUploads) -> None:
    one = picture(400)
    uploads.add("r", [one], b"submit")
    taken(uploads)
    uploads.clear()
    assert (taken(uploads), uploads.holds([one.digest])) == ("nothing", False)
