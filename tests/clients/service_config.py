"""The service config that docs/how-to/channels.md publishes, and what its tests send it against."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.processor.main import DESCRIPTION
from tests.ring import ROOT
from tests.services.in_process import served
from tests.services.processor.service_harness import ServiceHarness


def service_config() -> str:
    """As JSON, exactly as it is published."""
    (block,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "how-to" / "channels.md").read_text(), re.DOTALL)
    json.loads(block)
    return str(block)


@asynccontextmanager
async def draining_processor() -> AsyncIterator[str]:
    """The address of a processor that drains, for as long as it is wanted."""
    harness = ServiceHarness()
    harness.intake.drain()
    try:
        async with served(DESCRIPTION, harness.service) as port:
            yield f"127.0.0.1:{port}"
    finally:
        harness.queue.close()
