"""The running ring from both sides, OpenAI's client at its gateway and the native one at its processor; and a gateway
in this process, of endpoints made for a test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from ringline import Client

from tests.ring import Ring
from tests.services.gateway.http_harness import Running, running


@pytest.fixture(scope="session")
def door(ring: Ring) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{ring.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def native(ring: Ring) -> Iterator[Client]:
    with Client(ring.address) as client:
        yield client


@pytest.fixture
async def gateway() -> AsyncIterator[Running]:
    async with running() as made:
        yield made
