"""Two processors beside the running ring's own, each a process that can be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.ports import HeldPort
from tests.processes import Process
from tests.ring import Ring, metric_values

ATTEMPTS = 5
QUIET_LOOKS = 20
"""At the processors, all of which show the same: what was on its way to them has come."""
SETTLE_TIMEOUT = 100.0

Asked = TypeVar("Asked", bound=asyncio.Future[Any])


class Processor(Process):
    """One of them."""

    def __init__(self, name: str, ring: Ring, directory: Path) -> None:
        self._port, self._metrics_port = HeldPort(), HeldPort()
        peers = ["--engines", ring.engine_address, "--detokenizers", ring.addresses["detokenizer"]]
        flags = [*peers, "--metrics-port", str(self._metrics_port.number)]
        super().__init__(name, f"127.0.0.1:{self._port.number}", directory / f"{name}.log", flags)

    def release_ports(self) -> None:
        self._port.release()
        self._metrics_port.release()

    def look(self) -> tuple[float, float]:
        """How many requests it has, and tokens that it delivered in all; 0 of each when it does not say."""
        with contextlib.suppress(OSError):
            values = metric_values(f"http://127.0.0.1:{self._metrics_port.number}/metrics")
            return values["ringline_live_requests"], values["vllm:generation_tokens_total"]
        return 0, 0


class Processors:
    """Both."""

    def __init__(self, ring: Ring, directory: Path) -> None:
        self._supervisor, self._engine = ring.process.pid, ring.pid("engine")
        self.all = [Processor(name, ring, directory) for name in ("processor-one", "processor-other")]

    @property
    def addresses(self) -> list[str]:
        return [processor.address for processor in self.all]

    async def start(self) -> None:
        """Have both serve; one that is dead begins another life."""
        for processor in self.all:
            processor.start()
        for processor in self.all:
            await processor.wait_serving()

    @contextlib.asynccontextmanager
    async def caught(self, begin: Callable[[], Awaitable[Asked]]) -> AsyncIterator[tuple[Asked, Processor]]:
        """Ask, and stop the engine before the answers end: what was asked, and the processor that has it.

        Where everything had ended before the engine could be stopped, nothing has been shown, and it is asked anew.
        """
        for _ in range(ATTEMPTS):
            asked = await begin()
            with self.engine_paused():
                if (holder := await self.holder(asked)) is not None:
                    yield asked, holder
                    return
            await asked
        raise AssertionError(f"{ATTEMPTS} times, the answers ended before the engine could be stopped")

    async def holder(self, asked: asyncio.Future[Any]) -> Processor | None:
        """The one that has requests while nothing is computed, once what is on the way has come; None if they ended.

        Nothing more is on the way when the processors say the same again and again. They are looked at, rather than
        waited for, since they stand still where this process does.
        """
        seen: list[tuple[float, float]] = []
        same = 0
        async with asyncio.timeout(SETTLE_TIMEOUT):
            while not asked.done():
                now = [await asyncio.to_thread(processor.look) for processor in self.all]
                same = same + 1 if now == seen else 0
                seen = now
                holders = [one for one, (requests, _) in zip(self.all, now, strict=True) if requests]
                if holders and same >= QUIET_LOOKS:
                    return holders[0]
                await asyncio.sleep(0.01)
        return None

    @contextlib.contextmanager
    def engine_paused(self) -> Iterator[None]:
        """Nothing is computed meanwhile, so that nothing ends before its processor does.

        Its supervisor does not see that, or would end it if this took long.
        """
        stopped = (self._supervisor, self._engine)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)

    async def kill_holder(self, begin: Callable[[], Awaitable[Asked]]) -> tuple[Asked, Processor]:
        """Ask, and end the processor that has it, in the middle; begin its next life."""
        async with self.caught(begin) as (asked, victim):
            victim.kill()
        victim.start()
        return asked, victim

    def stop(self) -> None:
        for processor in self.all:
            processor.kill()
            processor.release_ports()
