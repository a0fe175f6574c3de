"""Channels of Go as docs/how-to/channels.md tells them to be: pings, and processors that end among two."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.clients.processor_processes import Processors
from tests.clients.service_config import service_config
from tests.ring import Ring
from tests.stubs.languages import answer

SECONDS = 45
"""More than three pings of 10 s each: the third one too many ends a connection."""
ANSWERS = 100
_RETRIES = {"GRPC_GO_RETRY": "on"}
"""Releases before 1.40 (Debian 12 has 1.33) send nothing again unless they are told to."""


def try_channels(command: Sequence[str], ring: Ring, folder: Path) -> None:
    """Run tests/stubs/balanced.go, compiled as ``command``, in each way. Raises ``StubsError`` if a call failed."""
    answer(command, service_config(), "hold", str(SECONDS), ring.address)
    asyncio.run(_end_one_of_two(command, Processors(ring, folder)))


async def _end_one_of_two(command: Sequence[str], processors: Processors) -> None:
    arguments = (service_config(), "answer", str(ANSWERS), *processors.addresses)
    victim = processors.all[0]
    try:
        for is_killed in (True, False):
            await processors.start()
            asked = asyncio.create_task(asyncio.to_thread(answer, command, *arguments, environment=_RETRIES))
            while victim.look()[1] < 80 and not asked.done():  # noqa: ASYNC110  # ten answers
                await asyncio.sleep(0.01)
            if is_killed:
                victim.kill()
            else:
                await victim.drain()
            await asked
    finally:
        processors.stop()
