"""A session with the processors for each token and tenant, because a stream has one identity."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import grpc
from ringline import AsyncClient, RingError
from starlette.datastructures import Headers

from services.gateway.http.api_error import ApiError, invalid

MAX_CALLERS = 256
"""Limit of known callers, and of unknown ones; one more closes the least recently used idle session."""
_TOKEN = re.compile(r"[\x20-\x7e]{1,8192}")
_TENANT = re.compile(r"[\x21-\x7e]{1,256}")

_Identity = tuple[str, str]
"""Token with its scheme, and tenant; either may be empty."""


@dataclass(eq=False)
class Caller:
    """One caller's session with the processors."""

    client: AsyncClient
    """Its calls carry the caller's token and tenant."""
    requests: int = 0
    """Under way."""
    known: bool = False
    """Whether processors have answered any of its requests."""
    refused: bool = False
    """Whether they rejected its token."""

    def answered(self) -> None:
        """Processors answered a request."""
        self.known = True

    def failed(self, error: RingError) -> None:
        """A request failed."""
        self.refused |= error.code is grpc.StatusCode.UNAUTHENTICATED


class Callers:
    """All callers' sessions, on one client's connections.

    Unknown callers, whose requests no processor has answered yet, have a separate limit: guessing tokens pushes no
    known caller out.
    """

    def __init__(self, client: AsyncClient, tenant_header: str, *, max_callers: int = MAX_CALLERS) -> None:
        self._client = client
        self._tenant_header = tenant_header
        self._max = max_callers
        self._known: OrderedDict[_Identity, Caller] = OrderedDict()
        self._unknown: OrderedDict[_Identity, Caller] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._known) + len(self._unknown)

    @contextmanager
    def serving(self, headers: Headers, *, asks_ring: bool = True) -> Iterator[Caller]:
        """The caller, for one request and its whole answer; anonymous without ``asks_ring``.

        Raises ``ApiError`` for invalid headers, and while too many callers have requests.
        """
        if not asks_ring:
            yield Caller(self._client)
            return
        identity = self._identity(headers)
        caller = self._find(identity)
        caller.requests += 1
        try:
            yield caller
        finally:
            caller.requests -= 1
            if caller.refused and not caller.requests:
                self._drop(identity, caller)
            elif caller.known:
                self._promote(identity, caller)

    def _identity(self, headers: Headers) -> _Identity:
        token, tenant = headers.get("authorization", ""), headers.get(self._tenant_header, "")
        if token.strip().lower() == "bearer":  # SDKs without a key send this
            token = ""
        if not token and (key := headers.get("x-api-key")):
            token = f"Bearer {key}"
        if token and not _TOKEN.fullmatch(token):
            problem = "authorization: expected Bearer and a key of printable ASCII characters, at most 8192"
            raise ApiError(HTTPStatus.UNAUTHORIZED, problem, code="invalid_api_key")
        if tenant and not _TENANT.fullmatch(tenant):
            raise invalid(self._tenant_header, "expected printable ASCII characters without spaces, at most 256")
        return token, tenant

    def _find(self, identity: _Identity) -> Caller:
        for callers in (self._known, self._unknown):
            if (caller := callers.get(identity)) is not None and not caller.refused:
                callers.move_to_end(identity)
                return caller
        if not self._make_room(self._unknown):
            problem = f"{self._max} new callers have requests under way, the limit: retry later"
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, problem, code="overload", retry_after=1.0)
        token, tenant = identity
        pairs = {"authorization": token, self._tenant_header: tenant}
        client = self._client.with_metadata({name: value for name, value in pairs.items() if value})
        caller = self._unknown[identity] = Caller(client)
        return caller

    def _promote(self, identity: _Identity, caller: Caller) -> None:
        if self._unknown.get(identity) is caller and not caller.refused and self._make_room(self._known):
            self._known[identity] = self._unknown.pop(identity)

    def _make_room(self, callers: OrderedDict[_Identity, Caller]) -> bool:
        """Whether one more fits, after closing the least recently used idle one if necessary."""
        if len(callers) < self._max:
            return True
        idle = next((identity for identity, caller in callers.items() if not caller.requests), None)
        if idle is None:
            return False
        self._drop(idle, callers[idle])
        return True

    def _drop(self, identity: _Identity, caller: Caller) -> None:
        for callers in (self._known, self._unknown):
            if callers.get(identity) is caller:
                del callers[identity]
        task = asyncio.ensure_future(caller.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End remaining requests with ``Cancelled``, and all sessions."""
        for callers in (self._known, self._unknown):
            for identity, caller in list(callers.items()):
                self._drop(identity, caller)
        if self._closing:
            await asyncio.wait(self._closing)
