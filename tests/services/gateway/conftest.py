from collections.abc import AsyncIterator

import pytest

from tests.services.gateway.http_harness import Running, running


@pytest.fixture
async def gateway() -> AsyncIterator[Running]:
    async with running() as made:
        yield made
