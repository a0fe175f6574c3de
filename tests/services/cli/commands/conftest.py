from collections.abc import AsyncIterator

import pytest

from tests.clients.scripted_server import ScriptedInference, Served, serving


@pytest.fixture
async def scripted_processor() -> AsyncIterator[Served]:
    async with serving(ScriptedInference()) as served:
        yield served
