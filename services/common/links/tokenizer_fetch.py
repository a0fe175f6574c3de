"""Fetches the tokenizer's files from an engine: bounded, and once for all engines with the same tokenizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ringline.engine.v1 import engine_pb2

from services.common.links.redial import LinkRefused
from text_core.tokenizer_files import fingerprint, is_tokenizer_file

MAX_TOTAL_BYTES = 512 << 20
TIMEOUT = 60.0
"""Timeout in seconds for all files together."""
SLOW = 5.0
"""Seconds after which a fetch that has not finished is started again from another engine."""

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Fetch:
    """A fetch in progress."""

    since: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class TokenizerFetcher(Generic[_T]):
    """Fetches each tokenizer once, by its digest. An engine that hangs delays others by ``SLOW`` at most."""

    def __init__(self, make: Callable[[dict[str, bytes]], _T]) -> None:
        """``make(files)`` builds the tokenizer, in a thread; it raises ``ValueError`` for damaged files."""
        self._make = make
        self._under_way: dict[str, _Fetch] = {}

    async def get(self, digest: str, stub: Any, held: Callable[[], _T | None], keep: Callable[[_T], object]) -> None:
        """Return when ``held()`` returns the tokenizer of this digest; fetch it and call ``keep`` if it does not.

        Raises ``LinkRefused`` for an unusable tokenizer, ``grpc.aio.AioRpcError`` if the engine does not answer, and
        any exception of ``keep``.
        """
        while held() is None:
            other = self._under_way.get(digest)
            if other is not None and (left := other.since + SLOW - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await other.ended.wait()
                continue
            mine = self._under_way[digest] = _Fetch(time.monotonic())
            try:
                fetched = await self._fetch(digest, stub)
                if held() is None:
                    keep(fetched)
                return
            finally:
                mine.ended.set()
                if self._under_way.get(digest) is mine:
                    del self._under_way[digest]

    async def _fetch(self, digest: str, stub: Any) -> _T:
        try:
            files = await fetch_tokenizer(stub)
            found = await asyncio.to_thread(fingerprint, files)
            if found != digest:
                raise LinkRefused(f"the tokenizer files it sent have the digest {found}: expected {digest}")
            return await asyncio.to_thread(self._make, files)
        except ValueError as error:
            raise LinkRefused(f"its tokenizer cannot be used: {error}") from error


async def fetch_tokenizer(stub: Any) -> dict[str, bytes]:
    """Contents of the tokenizer's files, keyed by name.

    Raises ``grpc.aio.AioRpcError``, or ``ValueError`` for files that are not allowed.
    """
    files: dict[str, bytearray] = {}
    total = 0
    async for chunk in stub.GetTokenizer(engine_pb2.GetTokenizerRequest(), timeout=TIMEOUT):
        if not is_tokenizer_file(chunk.name):
            raise ValueError(f"the engine sent {chunk.name!r}, which is not a tokenizer file")
        total += len(chunk.data)
        if total > MAX_TOTAL_BYTES:
            raise ValueError(f"the engine's tokenizer is larger than the limit of {MAX_TOTAL_BYTES} bytes")
        files.setdefault(chunk.name, bytearray()).extend(chunk.data)
    return {name: bytes(data) for name, data in files.items()}
