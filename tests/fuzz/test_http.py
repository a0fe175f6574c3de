"""Damaged HTTP requests: the gateway goes on, keeps nothing, and leaves other streams alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.common.config.addresses import host_and_port
from services.gateway.endpoints import ENDPOINTS
from tests.fuzz.http_bodies import BODIES
from tests.fuzz.http_requests import HttpFuzzer, streamed
from tests.ring import Ring
from tests.waiting import until

INPUTS = 200
OPEN = ("ringline_http_open_requests", "ringline_http_connections")


async def test_damaged_requests_leave_nothing_behind_and_other_streams_alone(ring: Ring) -> None:
    host, port = host_and_port(ring.http.partition("://")[2])

    def files() -> int:
        return len(list(Path(f"/proc/{ring.pid('gateway')}/fd").iterdir()))

    expected = await streamed(host, port, "Once upon a time")
    before = files()
    fuzzer = HttpFuzzer(host, port)
    fuzzing = asyncio.create_task(fuzzer.run(INPUTS, seed=1, streams=8))
    while not fuzzing.done():
        assert await streamed(host, port, "Once upon a time") == expected
    await fuzzing
    assert fuzzer.failures == []
    assert {"200", "400", "404", "405", "431"} <= set(fuzzer.codes)
    assert ring.process_lives("gateway"), "it was restarted"
    await until(lambda: all(ring.metric("gateway", series) == 0 for series in OPEN))
    assert files() <= before + 2


def test_every_path_that_asks_the_ring_is_fuzzed() -> None:
    asking = {endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST" and endpoint.asks_ring}
    assert {path for bodies in BODIES.values() for path, _ in bodies} == asking
