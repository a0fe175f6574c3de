"""Engines of several ranks beside one of a single process: each answers alone, and loses a rank under load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from tests.chaos.load import ClosedLoop, connect, record_answers
from tests.chaos.workload import pool
from tests.compose.engine import Failed, Stack, inspect, kill, kill_process
from tests.compose.run import (
    CLIENTS,
    CONCURRENCY,
    KINDS_OF_REQUESTS,
    MAX_KILLS,
    ONE,
    SEED,
    Step,
    check,
    generate,
    report,
    start,
)

Loss = Callable[[Stack], None]


def lose_rank(stack: Stack) -> None:
    kill_process(stack.containers("engine-tp2")[0], "rank tp1/2", stack.image("processor"))


def lose_container(kind: str) -> Loss:
    return lambda stack: kill(stack.containers(kind)[0], stack.image("processor"))


def use_ranks(stack: Stack, profile: str, losses: dict[str, Loss]) -> None:
    """The engine of a ``profile`` alone, then beside one of a single process, while it loses what ``losses`` name."""
    kind = f"engine-{profile}"
    stack = replace(stack, profiles=(profile,))
    start(stack, ONE | {"engine": 0, kind: 1})
    generate(stack)
    start(stack, ONE | {kind: 1})
    asyncio.run(disturb(stack, kind, losses))


async def disturb(stack: Stack, kind: str, losses: dict[str, Loss]) -> None:
    """Under load on both engines, lose a part of one: nothing may be lost, and it must come back."""
    specs = [spec for spec in pool(SEED) if spec.name.partition("-")[0] in KINDS_OF_REQUESTS]
    async with AsyncExitStack() as clients:
        connected = [await clients.enter_async_context(connect(",".join(stack.addresses))) for _ in range(CLIENTS)]
        answers = await record_answers(connected[0], specs, CONCURRENCY)
        load = ClosedLoop(connected, specs, answers, seed=SEED, concurrency=CONCURRENCY, pause=0.02)
        for name, lose in losses.items():
            await until_hit(load, name, lambda lose=lose: asyncio.to_thread(restart, stack, kind, lose))  # type: ignore[misc]
        await load.stop()
        report("after", load.next_phase())


async def until_hit(load: ClosedLoop, name: str, lose: Callable[[], Awaitable[float]]) -> None:
    """Lose it until the engine had requests, and they moved: its last may end just before."""
    for _ in range(MAX_KILLS):
        had = await lose()
        if report(f"killed: {name}, of an engine with {had:.0f} requests", load.next_phase()):
            return
    raise Failed(f"{MAX_KILLS} times no request was hit")


def restart(stack: Stack, kind: str, lose: Loss) -> float:
    """Lose a part of an engine, and wait until it serves again; returns how many requests it had."""
    container, had = stack.busiest(kind)
    before = int(inspect(container, "{{.RestartCount}}"))
    lose(stack)
    stack.wait_restarted(container, before)
    stack.wait_healthy(ONE | {kind: 1})
    stack.wait_linked(ONE | {kind: 1})
    check(True, f"{kind}: ended, started again, and serves")
    return had


STEPS: dict[str, Step] = {
    "tp2": lambda stack, _: use_ranks(stack, "tp2", {"a rank": lose_rank}),
    "ray": lambda stack, _: use_ranks(
        stack, "ray", {"the other node": lose_container("ray-head"), "its own node": lose_container("engine-ray")}
    ),
}
