"""Limits on requests under way and their bodies, in all and by client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from services.gateway.http.api_error import ApiError
from services.gateway.http.connection import Peer

_Key = TypeVar("_Key")
_RETRY_SECONDS = 1.0


@dataclass(eq=False)
class Request:
    """One request under way."""

    peer: Peer
    task: asyncio.Task[None]
    body_bytes: int = 0
    receiving: bool = True
    """Whether its body is incomplete."""
    refused: ApiError | None = None
    """Set when it was cancelled in favor of another client."""


class Load:
    """The requests under way, within limits."""

    def __init__(self, *, max_requests: int, max_connections_per_client: int, max_body_bytes: int) -> None:
        """``max_body_bytes``: of all requests together, each until it is answered."""
        self._max_requests = max_requests
        self._max_connections = max_connections_per_client
        self._max_bytes = max_body_bytes
        self._requests: set[Request] = set()
        self._of_client: Counter[str] = Counter()
        self._busy: Counter[Peer] = Counter()
        self._bytes = 0
        self.draining = False
        """Whether new requests are refused because the process ends."""

    @property
    def num_requests(self) -> int:
        """Requests under way."""
        return len(self._requests)

    def is_busy(self, host: str, port: int) -> bool:
        """Whether the connection from an address and port has requests. Called from other threads."""
        return (host, port) in self._busy

    @contextmanager
    def request(self, peer: Peer) -> Iterator[Request]:
        """Count the current task's request while the block runs. Raises ``ApiError`` over the limits."""
        self._check_room(peer)
        task = asyncio.current_task()
        assert task is not None
        request = Request(peer, task)
        self._requests.add(request)
        self._of_client[peer[0]] += 1
        self._busy[peer] += 1
        try:
            yield request
        finally:
            self._bytes -= request.body_bytes
            self._requests.discard(request)
            _decrement(self._of_client, peer[0])
            _decrement(self._busy, peer)

    def _check_room(self, peer: Peer) -> None:
        if self.draining:
            problem = "this gateway is about to end: send the request again, to another or once this one is back"
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, problem, code="draining", retry_after=_RETRY_SECONDS)
        if len(self._requests) >= self._max_requests:
            raise _too_many(f"{self._max_requests} requests are under way, the limit (--max-calls): retry later")
        if peer[0] and self._of_client[peer[0]] >= self._max_connections:
            limit = f"{self._max_connections} connections of one client with requests"
            raise _too_many(f"the limit of {limit} is reached (--max-connections-per-client): retry later")

    def hold(self, request: Request, size: int) -> None:
        """Count ``size`` more bytes of a body.

        If all bodies together are too large, cancels the largest incomplete request of the client with the most bytes.
        Raises ``ApiError`` if that is this request, or there is none.
        """
        request.body_bytes += size
        self._bytes += size
        while self._bytes > self._max_bytes:
            victim = self._heaviest()
            if victim is None or victim is request:
                raise _no_memory()
            victim.refused = _no_memory()
            victim.receiving = False
            self._bytes -= victim.body_bytes
            victim.body_bytes = 0
            victim.task.cancel()

    def _heaviest(self) -> Request | None:
        of_client: Counter[str] = Counter()
        for one in self._requests:
            of_client[one.peer[0]] += one.body_bytes
        receiving = [one for one in self._requests if one.receiving]
        return max(receiving, key=lambda one: (of_client[one.peer[0]], one.body_bytes), default=None)


def _decrement(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _too_many(problem: str) -> ApiError:
    return ApiError(HTTPStatus.TOO_MANY_REQUESTS, problem, code="overload", retry_after=_RETRY_SECONDS)


def _no_memory() -> ApiError:
    return _too_many("the bodies of all requests under way are too large for --memory-budget: retry later")
