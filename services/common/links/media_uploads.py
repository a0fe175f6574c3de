"""The pictures on their way to an engine: each in chunks, between which other commands of the link go.

A request's Submit goes behind its pictures. Requests take turns by the picture, so none waits for all of another's.
Chunks are made when they are written: what waits refers to pixels that the requests hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ringline.engine.v1 import engine_pb2

from text_core.pictures.prepared import PreparedItem

CHUNK_BYTES = 256 << 10


@dataclass(slots=True, eq=False)
class _Upload:
    """A request whose pictures go before its Submit."""

    pictures: list[PreparedItem]
    """Those that may have to be sent, in reverse."""
    submit: bytes
    """A serialized frame."""


class MediaUploads:
    """The pictures of one link, and which the engine holds."""

    def __init__(self) -> None:
        self._held: set[bytes] = set()
        """Digests of the pictures that the engine holds, or that were sent to it."""
        self._waiting: OrderedDict[str, _Upload] = OrderedDict()
        """By request id; the first is next."""
        self._chunks: Iterator[bytes] | None = None
        """The rest of the picture that is being sent."""
        self._under_way: bytes = b""
        """Its digest."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._chunks)

    def changed(self, held: Iterable[bytes], dropped: Iterable[bytes]) -> None:
        """What the engine says that it holds."""
        self._held.update(held)
        self._held.difference_update(dropped)

    def missed(self, digests: Iterable[bytes]) -> None:
        """The engine does not hold these, whatever was sent."""
        self._held.difference_update(digests)

    def holds(self, digests: Iterable[bytes]) -> bool:
        """Whether the engine is believed to hold all of these."""
        return self._held.issuperset(digests)

    def add(self, request_id: str, pictures: Sequence[PreparedItem], submit: bytes) -> None:
        """Send a request's pictures, as far as they are missing, then its Submit."""
        self._waiting[request_id] = _Upload(list(reversed(pictures)), submit)

    def withdraw(self, request_id: str) -> None:
        """The request has ended, or goes elsewhere: its Submit must not be sent any more."""
        self._waiting.pop(request_id, None)

    def clear(self) -> None:
        """The link has ended."""
        self._held.clear()
        self._waiting.clear()
        self._chunks = None

    def next(self) -> bytes | None:
        """The next frame: a chunk, or a Submit whose pictures have all been sent; None if there is none."""
        while True:
            if self._chunks is not None:
                if (chunk := next(self._chunks, None)) is not None:
                    return chunk
                self._chunks = None
                self._held.add(self._under_way)
            if not self._waiting:
                return None
            request_id, upload = self._waiting.popitem(last=False)
            while upload.pictures and upload.pictures[-1].digest in self._held:
                upload.pictures.pop()
            if not upload.pictures:
                return upload.submit
            picture = upload.pictures.pop()
            self._waiting[request_id] = upload  # behind the others
            self._chunks, self._under_way = _chunks(picture), picture.digest


def _chunks(picture: PreparedItem) -> Iterator[bytes]:
    """Frames of one chunk each, made one by one."""
    plan = picture.plan
    header: engine_pb2.MediaHeader | None = engine_pb2.MediaHeader(
        views=[engine_pb2.MediaView(height=view.height, width=view.width) for view in picture.views],
        rows=plan.rows,
        columns=plan.columns,
        token_rows=plan.token_rows,
        token_columns=plan.token_columns,
        num_tokens=plan.num_tokens,
    )
    for view in picture.views:
        for start in range(0, len(view.pixels), CHUNK_BYTES):
            data = view.pixels[start : start + CHUNK_BYTES]
            chunk = engine_pb2.MediaChunk(digest=picture.digest, header=header, data=data)
            header = None
            yield engine_pb2.AttachRequest(commands=[engine_pb2.Command(media=chunk)]).SerializeToString()
