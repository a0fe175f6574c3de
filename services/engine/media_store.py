"""The pictures that peers have sent: bounded in bytes, known by their digests, kept while requests need them.

A picture arrives in chunks (``PictureReceiver``, one for each attached peer). Its size is known from its first chunk,
and is charged before any pixel is kept. Complete pictures stay for later requests until others need the room: those
that no live request has go first that were used longest ago (``MediaStore``).
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from struct import Struct

from engine_core.errors import InvalidRequestError
from engine_core.media import CHANNELS, MAX_SIDE, MAX_VIEWS, MEDIA_DIGEST_BYTES, Picture, PictureShape, View
from services.ring.errors import Code, Reason, Refused, Status, invalid_field
from services.ring.limits import PICTURE_OVERHEAD_BYTES

MAX_CHUNK_BYTES = 512 << 10
MAX_REFUSALS = 256
"""Refused pictures of a peer that are remembered, with the reason."""
STALLED_SECONDS = 10.0
"""A picture of which no chunk has come for so long gives up its room when others need it."""
NEWS_PER_FRAME = 1024
"""Digests in one frame."""
_NUMBER = Struct("<I")


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """A picture before its pixels: the contract's MediaHeader."""

    shape: PictureShape
    sides: Sequence[tuple[int, int]]
    """Height and width of each view, pixels."""

    @property
    def nbytes(self) -> int:
        """Bytes of all pixels."""
        return sum(height * width * CHANNELS for height, width in self.sides)

    def check(self, most_tokens: int, most_bytes: int) -> None:
        """Raise ``Refused`` for a picture that no model of ``most_tokens`` a picture could make."""
        _check("views", len(self.sides), 1, MAX_VIEWS)
        for index, (height, width) in enumerate(self.sides):
            _check(f"views[{index}].height", height, 1, MAX_SIDE)
            _check(f"views[{index}].width", width, 1, MAX_SIDE)
        _check("num_tokens", self.shape.num_tokens, 1, most_tokens)
        if self.nbytes > most_bytes:
            problem = (
                f"{self.nbytes} bytes of pixels: expected at most {most_bytes}, which this engine has for pictures"
            )
            raise invalid_field("media.header.views", problem, reason=Reason.TOO_LARGE)

    def packed(self) -> bytes:
        """What the digest begins with."""
        shape = self.shape
        sides = [side for view in self.sides for side in view]
        numbers = (*sides, shape.rows, shape.columns, shape.token_rows, shape.token_columns, shape.num_tokens)
        return b"".join(map(_NUMBER.pack, numbers))


class MediaNews:
    """What one peer has still to be told of the pictures that are held."""

    def __init__(self, held: Iterable[bytes] = ()) -> None:
        self._news: dict[bytes, bool] = dict.fromkeys(held, True)
        """Digests, and whether they are held now. What came and went again since the last frame is not in it."""

    def __bool__(self) -> bool:
        return bool(self._news)

    def changed(self, digest: bytes, held: bool) -> None:
        if self._news.pop(digest, None) is None:
            self._news[digest] = held

    def take(self) -> tuple[list[bytes], list[bytes]]:
        """The digests for the next frame: of those that are new, and of those that are gone."""
        taken = list(islice(self._news.items(), NEWS_PER_FRAME))
        for digest, _ in taken:
            del self._news[digest]
        return [digest for digest, held in taken if held], [digest for digest, held in taken if not held]


class MediaStore:
    """The complete pictures of all peers, and the room that incomplete ones take."""

    def __init__(
        self,
        most: int,
        check: Callable[[Picture], None],
        *,
        max_tokens: int,
        retry_after_ms: Callable[[], int] = lambda: 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``most``: bytes of all together. ``check``: the executor's. ``max_tokens``: of the largest picture."""
        self.most = most
        self.check = check
        self.max_tokens = max_tokens
        self._retry_after_ms = retry_after_ms
        self._clock = clock
        self._held: OrderedDict[bytes, Picture] = OrderedDict()
        """By digest, the one used longest ago first."""
        self._pins: Counter[bytes] = Counter()
        """How many live requests have each picture."""
        self._pinned_by: dict[str, tuple[bytes, ...]] = {}
        """Digests that each request pins, keyed by core id."""
        self._told: set[MediaNews] = set()
        self._arriving: OrderedDict[PictureReceiver, float] = OrderedDict()
        """Who receives a picture, and when its last chunk came; the one that has waited longest first."""
        self.used = 0
        """Bytes charged."""
        self.received = 0
        """Pictures received since the start."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._held

    # Peers

    def listen(self) -> MediaNews:
        """What an attached peer must be told, from now on."""
        news = MediaNews(self._held)
        self._told.add(news)
        return news

    def ignore(self, news: MediaNews) -> None:
        self._told.discard(news)

    # Requests

    def find(self, digest: bytes) -> Picture | None:
        """A picture that is held; it becomes the one used last."""
        picture = self._held.get(digest)
        if picture is not None:
            self._held.move_to_end(digest)
        return picture

    def pin(self, core_id: str, digests: Iterable[bytes]) -> None:
        """A request has these pictures, until ``unpin``."""
        digests = tuple(set(digests))
        if digests:
            self._pinned_by[core_id] = digests
            self._pins.update(digests)

    def unpin(self, core_id: str) -> None:
        """The request has ended. Idempotent."""
        for digest in self._pinned_by.pop(core_id, ()):
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]

    # Room

    def reserve(self, nbytes: int) -> None:
        """Charge a picture that is about to come. Raises ``Refused`` if those in use leave no room for it."""
        wanted = nbytes + PICTURE_OVERHEAD_BYTES
        missing = self.used + wanted - self.most
        unused = []
        for digest, picture in self._held.items():  # only as far as needed: there may be very many
            if missing <= 0:
                break
            if digest not in self._pins:
                unused.append(digest)
                missing -= picture.nbytes + PICTURE_OVERHEAD_BYTES
        stalled = []
        now = self._clock()
        for receiver, last in self._arriving.items():
            if missing <= 0 or now - last < STALLED_SECONDS:
                break
            stalled.append(receiver)
            missing -= receiver.arriving_bytes + PICTURE_OVERHEAD_BYTES
        if missing > 0:
            raise self._full(
                f"{wanted} bytes for a picture; pictures of requests under way take {self.used} of the {self.most} "
                "bytes that this engine has for pictures (--media-memory-bytes)"
            )
        for digest in unused:
            self._drop(digest)
        for receiver in stalled:
            receiver.give_up(self._full(f"no pixels came for {STALLED_SECONDS:g} s, and others needed the room"))
        self.used += wanted

    def arrives(self, receiver: PictureReceiver) -> None:
        """A chunk of a picture came that is not complete."""
        self._arriving[receiver] = self._clock()
        self._arriving.move_to_end(receiver)

    def arrives_no_more(self, receiver: PictureReceiver) -> None:
        """Idempotent."""
        self._arriving.pop(receiver, None)

    def _full(self, problem: str) -> Refused:
        return Refused(
            Code.RESOURCE_EXHAUSTED,
            f"media: {problem}; retry later",
            retry_after_ms=self._retry_after_ms(),
            reason=Reason.QUOTA,
        )

    def give_back(self, nbytes: int) -> None:
        """A picture whose room was reserved does not come."""
        self.used -= nbytes + PICTURE_OVERHEAD_BYTES

    def keep(self, picture: Picture) -> None:
        """A picture whose room was reserved is complete."""
        self.received += 1
        if picture.digest in self._held:  # another peer sent the same meanwhile
            self.give_back(picture.nbytes)
            return
        self._held[picture.digest] = picture
        self._tell(picture.digest, held=True)

    def _drop(self, digest: bytes) -> None:
        self.give_back(self._held.pop(digest).nbytes)
        self._tell(digest, held=False)

    def _tell(self, digest: bytes, *, held: bool) -> None:
        for news in self._told:
            news.changed(digest, held)


@dataclass(slots=True)
class _Arriving:
    """A picture of which chunks are missing."""

    digest: bytes
    header: PictureHeader
    nbytes: int
    hash: blake2b
    views: list[View] = field(default_factory=list)
    pixels: bytearray = field(default_factory=bytearray)
    """Of the view that is arriving."""
    received: int = 0

    def add(self, data: bytes) -> None:
        """The next pixels; the caller has checked that they are not too many."""
        self.hash.update(data)
        self.received += len(data)
        rest = memoryview(data)
        while rest:
            height, width = self.header.sides[len(self.views)]
            size = height * width * CHANNELS
            taken = rest[: size - len(self.pixels)]
            self.pixels += taken
            rest = rest[len(taken) :]
            if len(self.pixels) == size:
                self.views.append(View(height, width, bytes(self.pixels)))
                self.pixels = bytearray()


class PictureReceiver:
    """The chunks of one peer's stream: pictures come one after another."""

    def __init__(self, store: MediaStore) -> None:
        self._store = store
        self._arriving: _Arriving | None = None
        self._skipped: bytes | None = None
        """Digest of a picture whose chunks are not needed: it is held already, or was refused."""
        self._refused: OrderedDict[bytes, Status] = OrderedDict()
        """Why pictures were refused, by digest, the latest last."""

    def close(self) -> None:
        """The stream has ended."""
        if self._arriving is not None:
            self._store.give_back(self._arriving.nbytes)
            self._end()

    def _end(self) -> None:
        """No picture arrives."""
        self._arriving = None
        self._store.arrives_no_more(self)

    @property
    def arriving_bytes(self) -> int:
        """Of the picture that has begun, in all."""
        return 0 if self._arriving is None else self._arriving.nbytes

    def give_up(self, reason: Refused) -> None:
        """The picture that has begun must make room; the rest of it is not needed."""
        if self._arriving is not None:
            self._skipped = self._arriving.digest
            self._remember(self._skipped, reason)
            self.close()

    def begin(self, digest: bytes, header: PictureHeader) -> None:
        """A first chunk: the picture before it, if it is not complete, is dropped. Raises ``Refused``."""
        self.close()
        self._skipped = digest
        if len(digest) != MEDIA_DIGEST_BYTES:
            raise invalid_field("media.digest", f"{len(digest)} bytes: expected {MEDIA_DIGEST_BYTES}")
        self._refused.pop(digest, None)
        if self._store.find(digest) is not None:
            return
        try:
            header.check(self._store.max_tokens, self._store.most - PICTURE_OVERHEAD_BYTES)
            self._store.reserve(header.nbytes)
        except Refused as refused:
            self._refuse(digest, refused)
        self._skipped = None
        started = blake2b(header.packed(), digest_size=MEDIA_DIGEST_BYTES)
        self._arriving = _Arriving(digest, header, header.nbytes, started)
        self._store.arrives(self)

    def add(self, digest: bytes, data: bytes) -> None:
        """The next pixels. Raises ``Refused`` if they do not belong to the picture that has begun."""
        if digest == self._skipped:
            return
        arriving = self._arriving
        if arriving is None or arriving.digest != digest:
            raise invalid_field("media.header", "absent: expected one in the first chunk of a picture")
        if len(data) > MAX_CHUNK_BYTES:
            self._drop(invalid_field("media.data", f"{len(data)} bytes: expected at most {MAX_CHUNK_BYTES}"))
        if (left := arriving.nbytes - arriving.received) < len(data):
            self._drop(invalid_field("media.data", f"{len(data)} bytes: expected {left}, as the header says"))
        arriving.add(data)
        self._store.arrives(self)
        if arriving.received == arriving.nbytes:
            self._complete(arriving)

    def find(self, digest: bytes) -> Picture:
        """A picture that a Submit names. Raises ``Refused``: with the reason if it was refused, else as missing."""
        if (picture := self._store.find(digest)) is not None:
            return picture
        if (status := self._refused.get(digest)) is not None:
            raise Refused(status.code, status.message, status.retry_after_ms, reason=status.reason, field=status.field)
        message = (
            f"media: this engine does not hold the picture {digest.hex()[:16]}…: send its chunks, then the request"
        )
        raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.MEDIA_MISSING, field="media")

    def _complete(self, arriving: _Arriving) -> None:
        if (found := arriving.hash.digest()) != arriving.digest:
            problem = f"{arriving.digest.hex()} is not that of the header and pixels, {found.hex()}"
            self._drop(invalid_field("media.digest", problem))
        picture = Picture(arriving.header.shape, tuple(arriving.views), found)
        try:
            self._store.check(picture)
        except InvalidRequestError as error:
            self._drop(invalid_field(error.field, error.problem))
        self._store.keep(picture)
        self._end()
        self._skipped = found

    def _drop(self, refused: Refused) -> None:
        assert self._arriving is not None
        self._skipped = self._arriving.digest
        self.close()
        self._refuse(self._skipped, refused)

    def _refuse(self, digest: bytes, refused: Refused) -> None:
        self._remember(digest, refused)
        raise refused

    def _remember(self, digest: bytes, refused: Refused) -> None:
        self._refused[digest] = refused.status
        while len(self._refused) > MAX_REFUSALS:
            self._refused.popitem(last=False)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise invalid_field(f"media.header.{name}", f"{value} is out of range: expected {least} to {most}")
