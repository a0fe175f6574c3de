"""The running ring from both sides, OpenAI's client or bare HTTP at its gateway and the native one at its processor;
and a gateway in this process, of endpoints made for a test.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from ringline import Client

from tests.ring import Ring
from tests.services.gateway.http_harness import Running, running


@pytest.fixture(scope="session")
def door(ring: Ring) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{ring.http}/v1", api_key="none", max_retries=0) as client:
        yield client


Post = Callable[[str, Any], httpx2.Response]


@pytest.fixture(scope="session")
def post(ring: Ring) -> Iterator[Post]:
    """A request without an SDK's help: a path, and bytes or what is sent as JSON."""
    with httpx2.Client(base_url=ring.http, timeout=60, headers={"content-type": "application/json"}) as client:
        yield lambda path, body: client.post(path, content=body if isinstance(body, bytes) else json.dumps(body))


@pytest.fixture(scope="module")
def native(ring: Ring) -> Iterator[Client]:
    """Not for longer: its connection is renewed whenever the processor closes it, during whatever test that is."""
    with Client(ring.address) as client:
        yield client


@pytest.fixture
async def gateway() -> AsyncIterator[Running]:
    async with running() as made:
        yield made
