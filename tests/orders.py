"""A process beside the one that measures, which carries out orders: each a line of JSON to it, and a line back."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

_LONGEST_LINE = 16 << 20
_READY = b"null\n"


@asynccontextmanager
async def carrying_out(module: str, niceness: int) -> AsyncIterator[Callable[[object], Awaitable[Any]]]:
    """Run ``module``, which calls ``serve``; yields a function that sends an order and returns the answer.

    It raises ``RuntimeError`` if the process has ended.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, str(niceness)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, of = process.stdin, process.stdout

    async def carry_out(order: object) -> Any:
        to.write(json.dumps(order).encode() + b"\n")
        await to.drain()
        if not (line := await of.readline()):
            raise RuntimeError(f"{module} ended with {await process.wait()}")
        return json.loads(line)

    try:
        if await of.readline() != _READY:
            raise RuntimeError(f"{module} did not start")
        yield carry_out
    finally:
        to.close()
        process.kill()
        await process.wait()


async def serve(carry_out: Callable[[Any], Awaitable[object]]) -> None:
    """Answer orders until standard input ends."""
    os.nice(int(sys.argv[1]))
    sys.stdout.write(_READY.decode())
    sys.stdout.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await carry_out(json.loads(line))), flush=True)
