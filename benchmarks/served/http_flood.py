"""Closed-loop peak and open-loop overload of a gateway, in turns, over HTTP. Runs in the peers' interpreter.

Prints one JSON object: goodput at the peak and under overload by round, and how requests were answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.work import Work, text_of

_PROMPTS = 64


@dataclass
class Tally:
    """What was answered in a span of time."""

    tokens: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """By status; "429 without retry-after" on its own; "cut" for a stream that did not end well."""
    refusals: list[float] = field(default_factory=list)
    """Seconds until a 429."""


class Flood:
    """The load on one gateway."""

    def __init__(self, url: str, model: str, prompt: int, output: int, session: aiohttp.ClientSession) -> None:
        self._url = f"{url}/v1/completions"
        self._session = session
        self._output = output
        work = Work(_PROMPTS, prompt, output, random.SystemRandom().getrandbits(32))
        common = {"model": model, "temperature": 0, "ignore_eos": True, "stream": True}
        self._bodies = [common | {"prompt": text_of(one)} for one in work.prompts()]
        self.tally = Tally()
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self) -> None:
        """One streamed request, whose length varies so that not all end together."""
        tokens = random.randint(self._output // 2, self._output * 3 // 2)
        body = random.choice(self._bodies) | {"max_tokens": tokens}
        begun, done = time.perf_counter(), False
        try:
            async with self._session.post(self._url, json=body) as answer:
                if answer.status == 200:
                    async for line in answer.content:
                        done |= line.startswith(b"data: [DONE]")
                    self.tally.answers["200" if done else "cut"] += 1
                    self.tally.tokens += tokens if done else 0
                    return
                await answer.read()
                named = answer.status != 429 or "retry-after" in answer.headers
                self.tally.answers[str(answer.status) if named else "429 without retry-after"] += 1
                self.tally.refusals.append(time.perf_counter() - begun)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.tally.answers[type(error).__name__] += 1

    async def closed_loop(self, streams: int) -> None:
        """Keep this many requests under way."""

        async def one() -> None:
            while True:
                await self.ask()

        await asyncio.gather(*(one() for _ in range(streams)))

    async def open_loop(self, rate: float) -> None:
        """Begin this many requests per second."""
        due = time.perf_counter()
        while True:
            task = asyncio.create_task(self.ask())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            due += random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def measure(self, load: Coroutine[Any, Any, None], settle: float, seconds: float) -> Tally:
        """What is answered in ``seconds`` of the load, after ``settle``."""
        task = asyncio.create_task(load)
        await asyncio.sleep(settle)
        self.tally = Tally()
        await asyncio.sleep(seconds)
        taken, self.tally = self.tally, Tally()
        task.cancel()
        for one in list(self._running):
            one.cancel()
        await asyncio.gather(task, *self._running, return_exceptions=True)
        return taken


async def _main(arguments: argparse.Namespace) -> dict[str, object]:
    peaks: list[float] = []
    floods: list[Tally] = []
    seconds, settle = arguments.seconds, arguments.settle
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        flood = Flood(arguments.url, arguments.model, arguments.prompt, arguments.output, session)
        for turn in range(arguments.rounds + 1):
            calm = await flood.measure(flood.closed_loop(arguments.streams), settle, seconds)
            peaks.append(calm.tokens / seconds)
            if turn < arguments.rounds:
                rate = arguments.times * peaks[0] / arguments.output
                floods.append(await flood.measure(flood.open_loop(rate), settle, seconds))
    around = zip(floods, peaks, peaks[1:], strict=False)
    answers: Counter[str] = sum((one.answers for one in floods), Counter())
    refusals = sorted(one for flood_tally in floods for one in flood_tally.refusals)
    return {
        "peak tok/s": sum(peaks) / len(peaks),
        "of the peak": [2 * one.tokens / seconds / (before + after) for one, before, after in around],
        "answers": dict(answers),
        "offered/s": sum(answers.values()) / seconds / len(floods),
        "refusal p50 ms": refusals[len(refusals) // 2] * 1e3 if refusals else None,
        "refusal p99 ms": refusals[len(refusals) * 99 // 100] * 1e3 if refusals else None,
    }


def main() -> None:
    """Drive the load and print the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    for flag in ("--prompt", "--output", "--streams", "--rounds"):
        parser.add_argument(flag, type=int, required=True)
    for flag in ("--times", "--seconds", "--settle"):
        parser.add_argument(flag, type=float, required=True)
    print(json.dumps(asyncio.run(_main(parser.parse_args()))))


if __name__ == "__main__":
    main()
