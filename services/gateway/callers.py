"""Callers: one session with the processors for each token and tenant, because a stream has one identity."""

from __future__ import annotations

from collections import OrderedDict

from ringline import AsyncClient
from starlette.datastructures import Headers

MAX_CALLERS = 256
"""Sessions that are kept; one more closes the least recently used."""


class Callers:
    """The sessions of callers, all on the connections of one client."""

    def __init__(self, client: AsyncClient, tenant_header: str) -> None:
        self._client = client
        self._tenant_header = tenant_header
        self._clients: OrderedDict[tuple[str, str], AsyncClient] = OrderedDict()

    def client_of(self, headers: Headers) -> AsyncClient:
        """A client whose calls carry the caller's token and tenant."""
        bearer = headers.get("authorization", "")
        if not bearer and (key := headers.get("x-api-key")):
            bearer = f"Bearer {key}"
        caller = (bearer, headers.get(self._tenant_header, ""))
        if (client := self._clients.get(caller)) is None:
            pairs = {"authorization": bearer, self._tenant_header: caller[1]}
            client = self._client.with_metadata({name: value for name, value in pairs.items() if value})
            self._clients[caller] = client
        self._clients.move_to_end(caller)
        return client
