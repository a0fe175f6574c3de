"""The room that an engine has for pictures: who gives way to whom."""

from __future__ import annotations

import pytest

from engine_core.media import MEDIA_DIGEST_BYTES, Picture, PictureShape, View
from services.engine.media_store import STALLED_SECONDS, MediaStore, PictureHeader, PictureReceiver
from services.ring.errors import Code, Reason, Refused
from services.ring.limits import PICTURE_OVERHEAD_BYTES

SIDE = 64
PICTURE_BYTES = SIDE * SIDE * 3
ROOM = 3 * (PICTURE_BYTES + PICTURE_OVERHEAD_BYTES)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MediaStore:
    """With room for three pictures."""
    return MediaStore(ROOM, lambda picture: None, max_tokens=64, clock=clock)


def picture(seed: int, width: int = SIDE) -> Picture:
    return Picture.of(PictureShape(4), [View(SIDE, width, bytes([seed]) * SIDE * width * 3)])


def begin(receiver: PictureReceiver, one: Picture) -> None:
    receiver.begin(one.digest, PictureHeader(one.shape, [(view.height, view.width) for view in one.views]))


def send(receiver: PictureReceiver, one: Picture) -> None:
    begin(receiver, one)
    receiver.add(one.digest, one.views[0].pixels)


def test_the_picture_unused_for_the_longest_time_gives_way(store: MediaStore) -> None:
    receiver = PictureReceiver(store)
    for seed in range(3):
        send(receiver, picture(seed))
    store.pin("request", [picture(0).digest])
    send(receiver, picture(3))
    assert [picture(seed).digest in store for seed in range(4)] == [True, False, True, True]
    assert store.used == ROOM


def test_no_picture_gives_way_to_one_that_has_no_room_all_the_same(store: MediaStore) -> None:
    receiver = PictureReceiver(store)
    for seed in range(2):
        send(receiver, picture(seed))
    store.pin("request", [picture(0).digest])
    with pytest.raises(Refused) as refused:
        begin(receiver, picture(3, 6 * SIDE))
    assert refused.value.status.code is Code.INVALID_ARGUMENT  # larger than all of the room
    with pytest.raises(Refused) as refused:
        begin(receiver, picture(3, 4 * SIDE))
    assert refused.value.status.code is Code.RESOURCE_EXHAUSTED
    assert picture(1).digest in store


def test_a_begun_picture_gives_way_once_no_pixels_come(store: MediaStore, clock: Clock) -> None:
    """Neither before that, nor without need."""
    silent, other = PictureReceiver(store), PictureReceiver(store)
    begun = picture(0, 3 * SIDE)
    begin(silent, begun)
    clock.now += STALLED_SECONDS / 2
    with pytest.raises(Refused):
        begin(other, picture(1, 3 * SIDE))
    silent.add(begun.digest, b"pixels")
    clock.now += STALLED_SECONDS / 2
    with pytest.raises(Refused):
        begin(other, picture(1, 3 * SIDE))
    clock.now += STALLED_SECONDS
    send(other, picture(1))
    send(other, picture(2, 3 * SIDE))
    silent.add(begun.digest, b"pixels")  # too late
    with pytest.raises(Refused) as refused:
        silent.find(begun.digest)
    assert (refused.value.status.code, refused.value.status.reason) == (Code.RESOURCE_EXHAUSTED, Reason.QUOTA)
    silent.close()
    begin(silent, picture(4, SIDE))
    silent.close()
    assert store.used == sum(
        one.nbytes + PICTURE_OVERHEAD_BYTES for one in (picture(1), picture(2, 3 * SIDE)) if one.digest in store
    )


def test_a_picture_without_a_digest_takes_no_room(store: MediaStore) -> None:
    with pytest.raises(Refused):
        PictureReceiver(store).begin(bytes(MEDIA_DIGEST_BYTES - 1), PictureHeader(PictureShape(1), [(1, 1)]))
    assert store.used == 0
