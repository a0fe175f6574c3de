"""Fetches pictures by HTTP from allowed hosts, within limits of bytes, time and number.

A URL comes from a caller, who may mean a machine that only this one reaches. So a host must be allowed by name, each of
its addresses is checked, and the connection goes to the address that was checked: a name that later has another one
leads nowhere. Redirects are checked in the same way. Nothing else of the caller's goes there: no headers, no cookies;
and the environment's proxies are not asked.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import h11
from ringline import Message

from services.gateway.http.api_error import ApiError, invalid
from services.gateway.media.hosts import (
    AllowedHosts,
    Target,
    UrlError,
    hosts_text,
    literal,
    public_address,
    target_of,
)
from services.gateway.media.pictures import Picture, RemotePicture, fields_of, remote_pictures

MAX_BYTES = 20 << 20
"""Of one picture, as processors take by default."""
SECONDS = 10.0
"""For one picture, from its turn to its last byte."""
MAX_PER_REQUEST = 64
_WAIT_SECONDS = 30.0
"""Until a picture's turn."""
_AT_A_TIME = 32
_AT_A_TIME_OF_CLIENT = 8
_MAX_REDIRECTS = 3
_MAX_ADDRESSES = 4
"""Of a host that are tried."""
_CHUNK = 64 << 10
_MAX_HEAD = 32 << 10
_RETRY_SECONDS = 1.0
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = (("user-agent", "ringline"), ("accept", "image/*"), ("accept-encoding", "identity"), ("connection", "close"))

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host and port."""
_resolvers = ThreadPoolExecutor(8, "resolver")
"""Of their own, for a slow server of names holds them up."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses that the system knows for a host. Raises ``OSError``."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_resolvers, look_up)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class PictureFetcher:
    """Fetches pictures for all requests of a gateway."""

    def __init__(
        self, allowed_hosts: Sequence[str] = (), *, resolve: Resolve = resolve, seconds: float = SECONDS
    ) -> None:
        """``allowed_hosts``: the entries of ``--allowed-media-hosts``. ``seconds``: for one picture."""
        self._allowed = AllowedHosts(tuple(allowed_hosts))
        self._resolve = resolve
        self._seconds = seconds
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._of_client: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    async def fill(
        self, messages: Sequence[Message], client: str, hold: Callable[[int], None]
    ) -> Mapping[tuple[int, int], str]:
        """Put the pictures into the messages in place of their URLs; returns the fields of all pictures.

        ``client``: whose turns are taken; ``hold``: counts bytes, and raises ``ApiError`` where they are too many.
        """
        found = list(remote_pictures(messages))
        if not found:
            return fields_of(messages)
        if len(found) > MAX_PER_REQUEST:
            problem = f"{len(found)} pictures are to be fetched: expected at most {MAX_PER_REQUEST}"
            raise invalid(found[MAX_PER_REQUEST][2].path, problem)
        targets = [self._target(picture) for _, _, picture in found]
        try:
            async with asyncio.TaskGroup() as tasks:
                for (content, at, picture), target in zip(found, targets, strict=True):
                    tasks.create_task(self._put(content, at, picture, target, client, hold))
        except ExceptionGroup as failed:
            raise _first(failed) from None
        return fields_of(messages)

    def _target(self, picture: RemotePicture) -> Target:
        """Where a picture is. Raises ``ApiError`` unless its host is allowed."""
        try:
            return self._checked(target_of(picture.url))
        except UrlError as error:
            raise invalid(picture.path, f"the URL {error}") from None

    def _checked(self, target: Target) -> Target:
        if self._allowed.allows(target):
            return target
        there_are = "no host is allowed"
        if self._allowed.entries:
            there_are = f"allowed are {hosts_text(self._allowed.entries)}"
        advice = "send the picture itself as a data: URL, or name its host in the gateway's --allowed-media-hosts"
        raise UrlError(
            f"leads to {target.authority[:200]}, from where pictures are not fetched ({there_are}): {advice}"
        )

    async def _put(
        self,
        content: list[Any],
        at: int,
        picture: RemotePicture,
        target: Target,
        client: str,
        hold: Callable[[int], None],
    ) -> None:
        async with self._turn(client, picture.path):
            try:
                async with asyncio.timeout(self._seconds):
                    data = await self._fetched(target, hold)
            except UrlError as error:
                raise invalid(picture.path, f"the URL {error}") from None
            except TimeoutError:
                problem = f"the picture was not there within {self._seconds:g} s: send it as a data: URL"
                raise invalid(picture.path, problem) from None
            except h11.RemoteProtocolError as error:
                raise invalid(
                    picture.path, f"the picture cannot be fetched: no whole answer in HTTP: {error}"
                ) from None
            except OSError as error:
                what = str(error)[:200] or type(error).__name__
                raise invalid(picture.path, f"the picture cannot be fetched: {what}") from None
        content[at] = Picture(data, picture.path)

    @asynccontextmanager
    async def _turn(self, client: str, path: str) -> AsyncIterator[None]:
        """One of the places of all, and of the client's."""
        own = self._of_client.setdefault(client, asyncio.Semaphore(_AT_A_TIME_OF_CLIENT))
        self._users[client] += 1
        held: list[asyncio.Semaphore] = []
        try:
            try:
                async with asyncio.timeout(_WAIT_SECONDS):
                    for semaphore in (own, self._slots):
                        await semaphore.acquire()
                        held.append(semaphore)
            except TimeoutError:
                problem = f"{path}: too many pictures are being fetched: retry later, or send it as a data: URL"
                raise ApiError(
                    HTTPStatus.TOO_MANY_REQUESTS, problem, path, "overload", retry_after=_RETRY_SECONDS
                ) from None
            yield
        finally:
            for semaphore in held:
                semaphore.release()
            self._users[client] -= 1
            if not self._users[client]:
                del self._users[client], self._of_client[client]

    async def _fetched(self, target: Target, hold: Callable[[int], None]) -> bytes:
        """The picture's bytes. Raises ``UrlError``, ``OSError``, ``h11.RemoteProtocolError`` or ``ApiError``."""
        for _ in range(_MAX_REDIRECTS + 1):
            found = await self._asked(target, hold)
            if isinstance(found, bytes):
                return found
            further = target_of(_joined(f"{target.scheme}://{target.authority}{target.path}", found))
            if target.scheme == "https" and further.scheme != "https":
                raise UrlError("leads from https to http")
            target = self._checked(further)
        raise UrlError(f"leads through more than {_MAX_REDIRECTS} redirects")

    async def _asked(self, target: Target, hold: Callable[[int], None]) -> bytes | str:
        """The body of one answer, or where it redirects to."""
        reader, writer = await self._connected(target)
        try:
            answer = _Answer(reader, hold)
            writer.write(answer.request(target))
            return await answer.read()
        finally:
            writer.transport.abort()

    async def _connected(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to one of the host's addresses, each of which is checked first."""
        if literal(target.host) is not None and self._allowed.names_address(target):
            addresses = [target.host]
        else:
            try:
                given = await self._resolve(target.host, target.port)
            except OSError as error:
                raise UrlError(f"leads to {target.authority[:200]}, which is not found: {error.strerror}") from None
            addresses = [str(public_address(one)) for one in given][:_MAX_ADDRESSES]
        tls: dict[str, Any] = {}
        if target.scheme == "https":
            tls = {"ssl": self._tls, "server_hostname": target.host}
        failed: OSError = ConnectionError("its host has no address")
        for address in addresses:
            try:
                return await asyncio.open_connection(address, target.port, limit=_CHUNK, **tls)
            except OSError as error:
                failed = error
        raise failed

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _joined(base: str, location: str) -> str:
    """Where a redirect leads. Raises ``UrlError``."""
    try:
        return urljoin(base, location)
    except ValueError as error:  # such as a bracket that is not closed
        raise UrlError(f"leads to what is no URL: {error}") from None


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    """The error of the first picture that has one."""
    errors = [error for error in failed.exceptions if isinstance(error, ApiError)]
    return (
        min(errors, key=lambda error: (len(error.param or ""), error.param or "")) if errors else failed.exceptions[0]
    )


class _Answer:
    """Asks for one picture, and reads the answer."""

    def __init__(self, reader: asyncio.StreamReader, hold: Callable[[int], None]) -> None:
        self._reader = reader
        self._hold = hold
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)

    def request(self, target: Target) -> bytes:
        """The bytes to send."""
        headers = [("host", target.authority), *_HEADERS]
        asked = self._http.send(h11.Request(method="GET", target=target.path, headers=headers)) or b""
        return asked + (self._http.send(h11.EndOfMessage()) or b"")

    async def read(self) -> bytes | str:
        """The body, or where the answer redirects to. Raises ``UrlError`` for what is no picture."""
        response = await self._next()
        while isinstance(response, h11.InformationalResponse):
            response = await self._next()
        if not isinstance(response, h11.Response):
            raise ConnectionError("the connection ended before an answer")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        if response.status_code in _REDIRECTS and (location := headers.get("location")):
            return location
        _check_head(response.status_code, headers)
        parts: list[bytes] = []
        size = 0
        while isinstance(event := await self._next(), h11.Data):
            size += len(event.data)
            if size > MAX_BYTES:
                raise _too_large()
            self._hold(len(event.data))
            parts.append(bytes(event.data))
        if not size:
            raise UrlError("leads to an empty answer")
        return await asyncio.to_thread(b"".join, parts)  # 20 MiB take a while

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_CHUNK))
        return event


def _check_head(status: int, headers: dict[str, str]) -> None:
    if status != HTTPStatus.OK:
        raise UrlError(f"was answered with the status {status}")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and not kind.startswith("image/") and kind not in ("application/octet-stream", "binary/octet-stream"):
        raise UrlError(f"leads to {kind[:80]}, which is no picture")
    if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise UrlError("leads to a compressed answer, although none was asked for")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BYTES:
        raise _too_large()


def _too_large() -> UrlError:
    return UrlError(f"leads to more than {MAX_BYTES} bytes, the limit for a picture")
