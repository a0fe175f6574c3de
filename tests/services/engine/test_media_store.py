"""Pictures of peers: bounded, kept while requests have them, and told to everybody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine_core.errors import InvalidRequestError
from engine_core.media import MEDIA_DIGEST_BYTES, Picture, PictureShape, View
from services.engine.media_store import (
    MAX_REFUSALS,
    NEWS_PER_FRAME,
    STALLED_SECONDS,
    MediaNews,
    MediaStore,
    PictureHeader,
    PictureReceiver,
)
from services.ring.errors import Code, Reason, Refused
from services.ring.limits import PICTURE_OVERHEAD_BYTES

SIDE = 64
PIXELS = SIDE * SIDE * 3
CHARGE = PIXELS + PICTURE_OVERHEAD_BYTES
FULL = Code.RESOURCE_EXHAUSTED, Reason.QUOTA


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def picture(seed: int, width: int = SIDE) -> Picture:
    return Picture.of(PictureShape(4), [View(SIDE, width, seed.to_bytes(2, "little") * (SIDE * width * 3 // 2))])


def begin(receiver: PictureReceiver, one: Picture) -> None:
    receiver.begin(one.digest, PictureHeader(one.shape, [(view.height, view.width) for view in one.views]))


def send(receiver: PictureReceiver, one: Picture) -> None:
    begin(receiver, one)
    receiver.add(one.digest, b"".join(view.pixels for view in one.views))


def store_of(count: int, clock: Clock | None = None) -> MediaStore:
    """With room for ``count`` pictures."""
    return MediaStore(count * CHARGE, lambda picture: None, max_tokens=4, clock=clock or Clock())


def status_of(call: Callable[..., object], *arguments: object) -> tuple[Code, Reason | None]:
    with pytest.raises(Refused) as refused:
        call(*arguments)
    return refused.value.status.code, refused.value.status.reason


def test_those_used_longest_ago_make_room_but_not_those_of_requests() -> None:
    store, pictures = store_of(3), [picture(seed) for seed in range(5)]
    receiver = PictureReceiver(store)
    for one in pictures[:3]:
        send(receiver, one)
    store.pin("r", [pictures[1].digest, pictures[1].digest])
    store.pin("s", [pictures[1].digest])
    receiver.find(pictures[0].digest)
    send(receiver, pictures[3])
    assert [one.digest in store for one in pictures] == [True, True, False, True, False]
    store.unpin("s")
    store.unpin("s")
    send(receiver, pictures[4])
    assert [one.digest in store for one in pictures] == [False, True, False, True, True]
    store.unpin("r")
    for one in pictures[2], pictures[0], pictures[3]:
        send(receiver, one)
    assert pictures[1].digest not in store
    assert (store.used, len(store), len(store._pins)) == (3 * CHARGE, 3, 0)


def test_there_is_no_room_beside_pictures_of_requests() -> None:
    store = store_of(2)
    receiver = PictureReceiver(store)
    for seed in range(2):
        send(receiver, picture(seed))
        store.pin(str(seed), [picture(seed).digest])
    third = picture(2)
    assert status_of(send, receiver, third) == FULL
    receiver.add(third.digest, b"its further pixels are passed over")
    assert status_of(receiver.find, third.digest) == FULL, "the reason"
    assert store.used == 2 * CHARGE
    store.unpin("0")
    send(receiver, third)
    assert receiver.find(third.digest) == third


def test_no_picture_gives_way_to_one_that_has_no_room_all_the_same() -> None:
    store = store_of(3)
    receiver = PictureReceiver(store)
    for seed in range(2):
        send(receiver, picture(seed))
    store.pin("r", [picture(0).digest])
    assert status_of(begin, receiver, picture(3, 6 * SIDE))[0] is Code.INVALID_ARGUMENT, "larger than all of the room"
    assert status_of(begin, receiver, picture(3, 4 * SIDE)) == FULL
    assert picture(1).digest in store


def test_what_has_begun_gives_its_room_back_when_its_stream_ends_or_the_next_begins() -> None:
    store = store_of(1)
    receiver = PictureReceiver(store)
    for seed in range(3):
        begin(receiver, picture(seed))
        receiver.add(picture(seed).digest, bytes(100))
        assert store.used == CHARGE
    receiver.close()
    receiver.close()
    assert store.used == 0


def test_what_has_begun_gives_way_once_no_pixels_come() -> None:
    """Neither before that, nor without need."""
    clock = Clock()
    store = store_of(3, clock)
    silent, other = PictureReceiver(store), PictureReceiver(store)
    begun, large = picture(0, 3 * SIDE), picture(1, 3 * SIDE)
    begin(silent, begun)
    clock.now += STALLED_SECONDS / 2
    assert status_of(begin, other, large) == FULL
    silent.add(begun.digest, b"pixels")
    clock.now += STALLED_SECONDS / 2
    assert status_of(begin, other, large) == FULL
    clock.now += STALLED_SECONDS
    send(other, picture(2))
    assert silent.arriving_bytes == begun.nbytes
    begin(other, large)
    assert store.used == large.nbytes + PICTURE_OVERHEAD_BYTES
    silent.add(begun.digest, b"pixels")  # too late
    assert status_of(silent.find, begun.digest) == FULL
    silent.close()
    assert store.used == large.nbytes + PICTURE_OVERHEAD_BYTES, "given back once"
    other.close()
    assert store.used == 0


def test_two_peers_that_send_one_picture_are_charged_for_one() -> None:
    store, one = store_of(2), picture(0)
    receivers = [PictureReceiver(store) for _ in range(2)]
    for receiver in receivers:
        begin(receiver, one)
    assert store.used == 2 * CHARGE
    for receiver in receivers:
        receiver.add(one.digest, one.views[0].pixels)
    assert (store.used, len(store)) == (CHARGE, 1)
    send(receivers[0], one)
    assert (store.used, store.received) == (CHARGE, 2), "the third time, no pixel was needed"


def test_a_picture_that_cannot_be_encoded_is_not_kept() -> None:
    def check(picture: Picture) -> None:
        raise InvalidRequestError("media", "of another family")

    store = MediaStore(CHARGE, check, max_tokens=4)
    receiver = PictureReceiver(store)
    assert status_of(send, receiver, picture(0))[0] is Code.INVALID_ARGUMENT
    assert (store.used, len(store)) == (0, 0)
    assert status_of(receiver.find, picture(1).digest) == (Code.FAILED_PRECONDITION, Reason.MEDIA_MISSING)


def test_a_picture_without_a_digest_takes_no_room() -> None:
    store = store_of(1)
    header = PictureHeader(PictureShape(1), [(1, 1)])
    assert status_of(PictureReceiver(store).begin, bytes(MEDIA_DIGEST_BYTES - 1), header)[0] is Code.INVALID_ARGUMENT
    assert store.used == 0


def test_refusals_are_remembered_in_bounds() -> None:
    receiver = PictureReceiver(MediaStore(CHARGE, lambda picture: None, max_tokens=3))
    for seed in range(2 * MAX_REFUSALS):
        assert status_of(send, receiver, picture(seed))[0] is Code.INVALID_ARGUMENT
    assert len(receiver._refused) == MAX_REFUSALS


def test_peers_are_told_what_changed_in_frames_of_a_bounded_size() -> None:
    digests = [number.to_bytes(32, "little") for number in range(NEWS_PER_FRAME + 7)]
    news = MediaNews(digests)
    assert [len(held) for held, _ in (news.take(), news.take())] == [NEWS_PER_FRAME, 7]
    assert not news
    news.changed(digests[0], False)
    news.changed(digests[1], False)
    news.changed(digests[0], True)
    assert news.take() == ([], [digests[1]]), "what went and came again is as it was"


def test_a_peer_hears_of_others_pictures() -> None:
    store = store_of(1)
    send(PictureReceiver(store), picture(0))
    news = store.listen()
    send(PictureReceiver(store), picture(1))
    assert news.take() == ([picture(1).digest], []), "the first one was never told"
    send(PictureReceiver(store), picture(2))
    assert news.take() == ([picture(2).digest], [picture(1).digest])
    store.ignore(news)
    send(PictureReceiver(store), picture(3))
    assert not news
