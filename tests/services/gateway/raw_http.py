"""HTTP without a client's help: what is sent and answered, as it is."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A response that has ended."""

    status: int
    headers: Mapping[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of server-sent events."""
        return [event.removeprefix("data: ") for event in self.body.removesuffix("\n\n").split("\n\n")]


def get(url: str) -> Answer:
    return _answer(urllib.request.Request(url))


def post(url: str, body: Any) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _answer(urllib.request.Request(url, data, {"content-type": "application/json"}))


def _answer(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return Answer(response.status, response.headers, response.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read().decode())
