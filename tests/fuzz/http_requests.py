"""Damaged HTTP requests, as follows from a seed: in their JSON, headers, framing, and in how they are sent and read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.http_bodies import BODIES, FIELDS
from tests.fuzz.mutations import FLOATS, INTEGERS, TEXTS, mutate_bytes

READ_SECONDS = 0.2
"""For the begin of an answer; who sent half a request may wait in vain."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset."""
_VALUES: Sequence[Any] = (
    *TEXTS,
    *FLOATS,
    *(number for numbers in INTEGERS.values() for number in numbers),
    None,
    True,
    [],
    {},
    [[]] * 300,
    {"a": {"b": {}}},
    10**400,
    "\ud800",
)
_HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"content-encoding", b"gzip"),
    (b"content-type", b"multipart/form-data; boundary=x"),
    (b"content-type", b"application/json; charset=utf-16"),
    (b"authorization", b"Bearer " + b"x" * 9000),
    (b"authorization", b"Basic \xff\xfe"),
    (b"x-api-key", b"\x80"),
    (b"expect", b"100-continue"),
    (b"expect", b"something"),
    (b"connection", b"upgrade"),
    (b"upgrade", b"h2c"),
    (b"transfer-encoding", b"chunked"),
    (b"transfer-encoding", b"gzip"),
    (b"content-length", b"18446744073709551616"),
    (b"host", b"elsewhere"),
    (b"x-request-id", b"x" * 500),
    (b"traceparent", b"00-zz"),
    (b"origin", b"null"),
    (b"x-ringline-tenant", b"\xf0\x9f\xa6\x8a"),
    (b"x", b"y" * 70_000),
    (b"accept", b"text/event-stream"),
)


@dataclass(frozen=True, slots=True)
class Damaged:
    """One connection's bytes, and what becomes of it."""

    parts: Sequence[bytes]
    """Sent one after the other, with a moment in between."""
    end: str
    """read, half-close, close or reset."""


def damaged(rng: random.Random, kind: str) -> Damaged:
    """The next one; ``kind``: of the ring."""
    requests = [_request(rng, kind) for _ in range(rng.choice((1, 1, 1, 1, 2, 30)))]
    data = b"".join(requests)
    if rng.random() < 0.2:
        data = mutate_bytes(rng, data)
    if rng.random() < 0.15:
        data = data[: rng.randint(0, len(data))]
    parts = [data]
    if rng.random() < 0.1:
        cuts = sorted(rng.randint(0, len(data)) for _ in range(3))
        parts = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return Damaged(parts, rng.choice(("read", "read", "read", "half-close", "close", "reset")))


def _request(rng: random.Random, kind: str) -> bytes:
    path, body = rng.choice(BODIES[kind])
    data = _body(rng, body, FIELDS[kind])
    headers = [(b"host", b"gateway"), (b"content-type", b"application/json")]
    framing = rng.random()
    if framing < 0.1:
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        data = mutate_bytes(rng, chunk) if rng.random() < 0.5 else chunk
        headers.append((b"transfer-encoding", b"chunked"))
    else:
        length = len(data) if framing < 0.9 else rng.choice((0, 1, len(data) - 1, len(data) + 9, 10**7, -1))
        headers.append((b"content-length", b"%d" % length))
    headers += rng.choices(_HEADERS, k=rng.choice((0, 0, 1, 3)))
    if rng.random() < 0.02:
        headers += [(b"x%d" % number, b"y") for number in range(400)]
    method = rng.choice(("POST",) * 9 + ("GET", "PUT", "TRACE", "CONNECT", "POS T", "\x00"))
    if rng.random() < 0.1:
        path = rng.choice(("/", "*", "//", "/%ff%00", "/" + "x" * 70_000, "http://elsewhere/", "/v1/../metrics", "/v1"))
    version = rng.choice(("1.1",) * 12 + ("1.0", "0.9", "2.0", "9"))
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    return f"{method} {path} HTTP/{version}\r\n".encode("latin-1") + lines + b"\r\n" + data


def _body(rng: random.Random, body: dict[str, Any], more: Sequence[str]) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice((b"", b"{", b"null", b"[" * 50_000, b"\xff\xfe", b'{"a":' * 50_000, b"NaN", b'{"n":1,"n":2}'))
    changed = dict(body)
    if kind > 1:
        for _ in range(rng.randint(1, 3)):
            changed[rng.choice((*changed, *more))] = rng.choice(_VALUES)
    data = json.dumps(changed).encode()
    return mutate_bytes(rng, data) if kind == 2 else data


@dataclass
class HttpFuzzer:
    """Sends damaged requests to one gateway."""

    host: str
    port: int
    kind: str = "tokens"
    """Of the ring."""
    sent: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Answers by status; ``none`` where there was none in time, ``ended`` where the gateway closed without one."""
    failures: list[str] = field(default_factory=list)

    async def run(self, inputs: int, seed: int, *, streams: int = 1, rate: float | None = None) -> None:
        """Send what follows from ``seed`` on ``streams`` connections at a time, at most ``rate`` a second."""
        rng, begun, number = random.Random(seed), time.monotonic(), 0

        async def send() -> None:
            nonlocal number
            while number < inputs:
                number += 1
                one = damaged(rng, self.kind)
                if rate is not None:
                    await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
                await self._send(one)

        await asyncio.gather(*(send() for _ in range(streams)))

    async def _send(self, one: Damaged) -> None:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as error:
            self.failures.append(f"no connection: {error}")
            return
        self.sent += 1
        code = "none"
        try:
            with contextlib.suppress(OSError):  # the gateway may have ended the connection
                for part in one.parts:
                    writer.write(part)
                    await asyncio.sleep(0)
                if one.end == "half-close":
                    writer.write_eof()
            if one.end in ("read", "half-close"):
                code = await _status(reader)
            elif one.end == "reset":
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        finally:
            writer.transport.abort()
        self.codes[code] += 1
        if code == "500":
            self.failures.append(f"500 for {one.parts[0][:2000]!r}")


async def _status(reader: asyncio.StreamReader) -> str:
    try:
        line = await asyncio.wait_for(reader.readline(), READ_SECONDS)
    except TimeoutError:
        return "none"
    except ConnectionError:
        return "ended"
    return line.split()[1].decode() if line.startswith(b"HTTP/1.1 ") else "ended"


async def streamed(host: str, port: int, prompt: str) -> str:
    """The text of a stream, which must end well."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True, "ignore_eos": True}
    answer = await posted(host, port, "/v1/completions", body)
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        raise AssertionError(f"a good stream failed: {answer[-300:]}")
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])


async def posted(host: str, port: int, path: str, body: Mapping[str, Any]) -> str:
    """The body of an answer, which must be a good one."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
    answer = (await reader.read()).decode()
    writer.close()
    if not answer.startswith("HTTP/1.1 200 "):
        raise AssertionError(f"a good request failed: {answer[-300:]}")
    return answer.partition("\r\n\r\n")[2]
