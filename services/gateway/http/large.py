"""Long work on large bodies: their values are limited, and one thread takes one body at a time.

The event loop serves all clients, so nothing on it may take long. A body of 4 MiB can hold a million values, each of
which becomes objects of the endpoint, the client library and protobuf: seconds of work.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

from services.gateway.http.api_error import ApiError

MAX_VALUES = 128 << 10
"""In a body, with names, lists and objects, but without whole numbers: token ids are many and cheap."""
EXPONENT_VALUES = 32
"""The values that a number with an exponent counts as: decoding 9e300 may take 20 µs."""
MAX_ENTRIES = 1 << 20
"""In all lists and objects together, with whole numbers."""
SMALL_BYTES = 64 << 10
SMALL_ENTRIES = 1024
_FEW = 64
_EXPONENT = re.compile(rb"[0-9][eE][-+0-9]")
_BASE64_BEGINS = re.compile(rb';base64,|"data"[ \t\r\n]*:[ \t\r\n]*"')
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/=]++|\\/)*+")
"""PHP writes slashes as \\/."""
_WINDOW = 256 << 10
"""Bytes that are matched in one go, which holds Python's lock (GIL)."""
_LONGEST_BEGIN = 64
"""Bytes of what begins base64, with white space."""

_T = TypeVar("_T")


def is_small(body: bytes) -> bool:
    """Whether all work on a JSON body takes few milliseconds."""
    if len(body) > SMALL_BYTES or (entries := _entries(body)) > SMALL_ENTRIES:
        return False
    return entries <= _FEW or len(_EXPONENT.findall(body)) <= _FEW


def check_values(body: bytes) -> None:
    """Raise ``ApiError`` for JSON of too many values. Anything else may pass.

    The count precedes decoding, which holds Python's lock (GIL) throughout.
    """
    if EXPONENT_VALUES * _entries(body) + body.count(b'"') // 2 <= MAX_VALUES:
        return
    plain, strings = _without_escapes(body)
    if strings > MAX_VALUES:
        raise _too_many()
    outside = _outside_strings(plain)
    literals = sum(map(outside.count, (b"t", b"f", b"n")))  # true, false and null have one of these each
    counted = strings + literals + _numbers(outside) + outside.count(b"[") + outside.count(b"{")
    if counted > MAX_VALUES or _entries(outside) > MAX_ENTRIES:
        raise _too_many()


def check_plain_bytes(body: bytes, limit: int) -> None:
    """Raise ``ApiError`` if a body has more than ``limit`` bytes beside what it has in base64, such as pictures.

    Base64 has nothing that takes a decoder long, unlike escapes, lists and objects.
    """
    plain = at = 0
    while (begin := _base64_after(body, at, at + limit - plain + 1)) is not None:
        plain += begin - at
        at = begin
        while (run := _BASE64.match(body, at, at + _WINDOW)) is not None and run.end() > at:
            at = run.end()
    if plain + len(body) - at > limit:
        problem = f"the body has more than {limit} bytes beside pictures, the limit: send less, or raise"
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{problem} --max-message-bytes", code="too_large")


def _base64_after(body: bytes, at: int, end: int) -> int | None:
    """Where the next base64 begins; None if that is not before ``end``."""
    for start in range(at, min(end, len(body)), _WINDOW):
        if (begins := _BASE64_BEGINS.search(body, start, min(start + _WINDOW + _LONGEST_BEGIN, end))) is not None:
            return begins.end()
    return None


def has_more_entries(body: bytes, limit: int) -> bool:
    """Whether JSON's lists and objects have more than ``limit`` entries, give or take empty ones."""
    if _entries(body) <= limit:
        return False
    plain, strings = _without_escapes(body)
    return strings > 2 * limit or _entries(_outside_strings(plain)) > limit


def _without_escapes(body: bytes) -> tuple[bytes, int]:
    """JSON where every quotation mark delimits a string, and the number of strings."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return plain, plain.count(b'"') // 2


def _outside_strings(plain: bytes) -> bytes:
    return b"".join(plain.split(b'"')[::2])


def _numbers(outside: bytes) -> int:
    """What numbers count as: 0 if whole and written out."""
    exponents = sum(map(outside.count, (b"e", b"E"))) - sum(map(outside.count, (b"true", b"false")))
    return outside.count(b".") + EXPONENT_VALUES * exponents


def _entries(json: bytes) -> int:
    """At least the entries of all lists and objects; more where texts contain commas or brackets."""
    return json.count(b",") + json.count(b"[") + json.count(b"{")


def _too_many() -> ApiError:
    kinds = "texts, lists, objects, literals and fractions, names counted and numbers with an exponent as"
    limits = f"{MAX_VALUES} {kinds} {EXPONENT_VALUES}, and {MAX_ENTRIES} entries in all"
    problem = f"the body has too many values: expected at most {limits}; send less at once"
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, problem, code="too_large")


@dataclass
class LargeBodies:
    """The thread and its queue.

    Each client has at most one body in the queue, so sending many does not delay other clients more than sending one.
    """

    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "large-body"))
    _turns: dict[str, tuple[asyncio.Lock, int]] = field(default_factory=dict)
    """By client, with the number of holders and waiters."""

    async def run(self, client: str, work: Callable[[], _T]) -> _T:
        """Run ``work`` in the thread."""
        async with self._turn(client):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        lock, others = self._turns.get(client, (asyncio.Lock(), 0))
        self._turns[client] = lock, others + 1
        try:
            async with lock:
                yield
        finally:
            lock, holders = self._turns.pop(client)
            if holders > 1:
                self._turns[client] = lock, holders - 1
