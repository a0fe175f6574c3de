"""The ring, its kills and the client's streams, and what became of each stream."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ringline

from tests.chaos.fleet import Fleet
from tests.chaos.load import connect
from tests.chaos.workload import RequestSpec, pool
from tests.clients import npm_package

PROGRAM = Path(__file__).resolve().parent / "kills.mjs"
KINDS = ("processor", "detokenizer", "engine")
CONCURRENCY = 16
"""Of the requests whose answers are recorded."""
SETTLE_SECONDS = 60.0
"""Until as many streams as are kept have ended after a kill."""
END_SECONDS = 300.0
MOST_DETAILS = 5
_NESTED = ("beam_search", "no_repeat_ngram", "parse")
"""Options that are objects of options."""

Answer = dict[str, Any]


@dataclass(frozen=True)
class Options:
    streams: int
    rounds: int
    seed: int


@dataclass
class Report:
    """What happened, by service, and to all streams."""

    kills: Counter[str] = field(default_factory=Counter)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By the service that was killed last: streams that were resumed, and that moved to another engine."""
    ended: Counter[str] = field(default_factory=Counter)
    """Streams that ended, by the service that was killed last; empty before the first kill."""
    ways: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    """Streams that were resumed."""
    equal: int = 0
    altered: int = 0
    lost: int = 0
    tokens: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        found = [f"{count} {what}" for count, what in ((self.altered, "altered"), (self.lost, "lost")) if count]
        if not self.moves["processor", "resumed"]:
            found.append("no stream was resumed when a processor was killed")
        if not self.moves["engine", "moved"]:
            found.append("no stream moved when an engine was killed")
        return found + self.details

    def lines(self) -> list[str]:
        shown = [f"{'killed':12} {'kills':>6} {'streams':>8} {'resumed':>8} {'moved':>6}"]
        for kind in KINDS:
            moves = (self.moves[kind, what] for what in ("resumed", "moved"))
            resumed, moved = moves
            shown.append(f"{kind:12} {self.kills[kind]:6} {self.ended[kind]:8} {resumed:8} {moved:6}")
        total = sum(self.ended.values())
        by_way = ", ".join(f"{count} {way}" for way, count in sorted(self.ways.items()))
        shown.append(f"{total} streams ({by_way}) of {self.tokens} tokens, {self.resumed} of them resumed:")
        shown.append(f"{self.equal} equal, {self.altered} altered, {self.lost} lost")
        return shown + [f"PROBLEM {problem}" for problem in self.problems]


async def run(options: Options, directory: Path) -> Report:
    """Record the right answers, then keep streams running while every process is killed in turn."""
    program = directory / "program"
    program.mkdir()
    npm_package.install(await asyncio.to_thread(npm_package.packed, directory), program)
    (program / PROGRAM.name).write_text(PROGRAM.read_text())
    specs = pool(options.seed, per_kind=3)
    report = Report()
    async with Fleet(directory, 2, 2, 2) as fleet:
        async with connect(fleet.fronts) as client:
            answers = await _record(client, specs)
        plan = program / "plan.json"
        plan.write_text(json.dumps({"address": fleet.fronts, "streams": options.streams, "specs": planned(specs)}))
        node = await asyncio.create_subprocess_exec(
            "node",
            str(program / PROGRAM.name),
            str(plan),
            limit=1 << 24,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        streams = Streams(report, answers)
        try:
            reading = asyncio.create_task(streams.read(node))
            await _kill_each(fleet, streams, options, reading)
            assert node.stdin is not None
            node.stdin.close()
            await asyncio.wait_for(reading, END_SECONDS)
        finally:
            if node.returncode is None:
                node.kill()
            await node.wait()
    if not streams.whole:
        report.details.append("the program ended before its streams did")
    return report


async def _kill_each(fleet: Fleet, streams: Streams, options: Options, reading: asyncio.Task[None]) -> None:
    await streams.wait_for_ends(options.streams // 2, reading)
    for _ in range(options.rounds):
        for kind in KINDS:
            for name in fleet.names[kind]:
                process = fleet.processes[name]
                streams.killed = kind
                streams.report.kills[kind] += 1
                process.kill()
                process.start()
                await process.wait_serving()
                await streams.wait_for_ends(options.streams // 2, reading)


class Streams:
    """What the program tells of its streams."""

    def __init__(self, report: Report, answers: Mapping[str, Answer]) -> None:
        self.report = report
        self.killed = ""
        """The service that was killed last."""
        self.whole = False
        """Whether the program has said that all its streams have ended."""
        self._answers = answers

    async def read(self, node: asyncio.subprocess.Process) -> None:
        """Until it ends."""
        assert node.stdout is not None
        async for line in node.stdout:
            told = json.loads(line)
            if "whole" in told:
                self.whole = True
            elif "moved" in told:
                self.report.moves[self.killed, told["moved"]] += 1
            else:
                self._judge(told)

    async def wait_for_ends(self, count: int, reading: asyncio.Task[None]) -> None:
        """Until so many more streams have ended, or for a while."""
        goal = self.report.ended.total() + count
        loop = asyncio.get_running_loop()
        end = loop.time() + SETTLE_SECONDS
        while self.report.ended.total() < goal and loop.time() < end and not reading.done():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def _judge(self, told: Answer) -> None:
        report, name = self.report, told.pop("name")
        report.ended[self.killed] += 1
        report.ways[told.pop("way")] += 1
        if "error" in told:
            report.lost += 1
            self._note(f"{name}: {told['error']}")
            return
        report.resumed += told.pop("resumed") > 0
        report.tokens += told["completion_tokens"]
        if told == self._answers[name]:
            report.equal += 1
        else:
            report.altered += 1
            self._note(f"{name}: {json.dumps(told)[:300]} instead of {json.dumps(self._answers[name])[:300]}")

    def _note(self, problem: str) -> None:
        if len(self.report.details) < MOST_DETAILS:
            self.report.details.append(problem)


async def _record(client: ringline.AsyncClient, specs: Sequence[RequestSpec]) -> dict[str, Answer]:
    free = asyncio.Semaphore(CONCURRENCY)

    async def ask(spec: RequestSpec) -> Answer:
        async with free:
            return answer_of(await client.generate(**spec.arguments()))

    answers = await asyncio.gather(*map(ask, specs))
    return {spec.name: answer for spec, answer in zip(specs, answers, strict=True)}


def answer_of(generation: ringline.Generation) -> Answer:
    """In the form that the program tells it."""
    choices = [
        {
            "text": choice.text,
            "token_ids": list(choice.token_ids),
            "finish_reason": choice.finish_reason,
            "stop": choice.stop,
            "content": choice.content,
            "tool_calls": [call.arguments for call in choice.tool_calls],
            "logprobs": None if choice.logprobs is None else [one.logprob for one in choice.logprobs],
        }
        for choice in generation.choices
    ]
    return {"choices": choices, "completion_tokens": generation.usage.completion_tokens}


def planned(specs: Sequence[RequestSpec]) -> list[dict[str, Any]]:
    """Requests as the program asks them."""
    return [
        {
            "name": spec.name,
            "prompt": list(spec.messages) or spec.prompt,
            "options": {camel(name): _option(name, value) for name, value in spec.options.items()},
        }
        for spec in specs
    ]


def _option(name: str, value: Any) -> Any:
    return {camel(key): one for key, one in value.items()} if name in _NESTED else value


def camel(name: str) -> str:
    """``max_tokens`` as JavaScript writes it."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
