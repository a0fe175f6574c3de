from collections.abc import AsyncIterator

import pytest

from tests.clients.scripted_server import ScriptedInference, Served, serving


@pytest.fixture
async def front_door() -> AsyncIterator[Served]:
    """A scripted processor."""
    async with serving(ScriptedInference()) as served:
        yield served
