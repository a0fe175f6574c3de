"""Prints the trace of one request for docs/how-to/tracing.md: ``python -m tests.services.print_trace``.

A ring of real processes that trace, a real OTLP receiver, and what arrived there as lines over time.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path

import ringline

from tests.collector import Received, collecting
from tests.ring import running_ring

HOPS = 7
WIDTH = 48
"""Characters for the time that the request took."""


async def ask(address: str, trace_id: str) -> None:
    """One warm request, and the one that is looked at."""
    async with ringline.AsyncClient(address) as client:
        await client.generate("Once upon a time", max_tokens=32, ignore_eos=True)
        parent = f"00-{trace_id}-{secrets.token_hex(8)}-01"
        await client.generate("Once upon a time there was", max_tokens=32, ignore_eos=True, traceparent=parent)


def lines(spans: list[Received]) -> list[str]:
    """One for each span: who, what, and when after the request's arrival."""
    (request,) = (one for one in spans if one.name == "request")
    begin, whole = (
        request.span.start_time_unix_nano,
        request.span.end_time_unix_nano - request.span.start_time_unix_nano,
    )
    found = []
    for one in sorted(spans, key=lambda one: (one.span.start_time_unix_nano, one is not request)):
        first, last = (at - begin for at in (one.span.start_time_unix_nano, one.span.end_time_unix_nano))
        left = min(WIDTH - 1, max(0, round(first / whole * WIDTH)))
        bar = " " * left + "█" * max(1, round(last / whole * WIDTH) - left)
        found.append(f"{one.service:<21} {one.name:<11} {first / 1e6:6.1f} to {last / 1e6:6.1f} ms  |{bar:<{WIDTH}}|")
    return found


def main() -> None:
    """Run the ring, ask, print."""
    trace_id = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder, collecting() as collector:
        flags = (f"--otlp-traces-endpoint=http://127.0.0.1:{collector.port}", "--traces-sample-ratio=0")
        with running_ring(Path(folder), *flags) as ring:
            asyncio.run(ask(ring.address, trace_id))
            print(*lines(collector.trace(trace_id, lambda spans: len(spans) == HOPS)), sep="\n")


if __name__ == "__main__":
    main()
