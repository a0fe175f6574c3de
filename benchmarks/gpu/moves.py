"""Part: streams that outlive the engine which computes them, between a GPU and a CPU."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ringline

from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.place import Place
from benchmarks.report import Row
from benchmarks.served.processes import ServerError, end_children_when_terminated, running
from engine_core.llm import LLM, SamplingParams

_ROOT = Path(__file__).resolve().parents[2]
_ENGINES = ("gpu", "cpu")
_MODEL = _ROOT / "checkpoints" / "tiny"
_STREAMS, _TOKENS = 16, 400
_BEFORE_THE_KILL = 24
"""Tokens that the first stream has by then; all have some."""
_START_TIMEOUT = 90.0
_STREAM_TIMEOUT = 60.0
_LOG_LINES = 12


@dataclass(slots=True)
class _Answer:
    """What a stream has received."""

    token_ids: list[int] = field(default_factory=list)
    numerics: str = ""
    """Of the engine that computes it."""
    moves: int = 0


def measure(place: Place) -> Iterator[Row]:
    """Kill the GPU's engine under streams, start it again, and kill the CPU's."""
    end_children_when_terminated()
    yield asyncio.run(_measure(place))


async def _measure(place: Place) -> Row:
    expected = await asyncio.to_thread(_alone)
    figures: dict[str, int] = {}
    equal = 0
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        ring = _Ring(place, Path(directory), stack)
        stack.callback(ring.tell)
        async with ringline.AsyncClient(ring.start(), patience=_START_TIMEOUT, wait_for_ready=True) as client:
            for victim in _ENGINES:
                await _wait_for_engines(client)
                answers = await _disturbed(client, lambda victim=victim: ring.kill(victim))  # type: ignore[misc]
                figures[f"moved off the {victim}"] = sum(answer.moves for answer in answers)
                equal += sum(answer.token_ids == wanted for answer, wanted in zip(answers, expected, strict=True))
                ring.start_engine(victim)
    if not all(figures.values()):
        raise RuntimeError(f"no stream was in the way of a kill: {figures}")
    return GOALS["moves"].reached(equal / (2 * _STREAMS), streams=2 * _STREAMS, tokens=_TOKENS, **figures)


def _prompts() -> list[list[int]]:
    """Different ones, of ids that the bundled model knows."""
    return [[100 + 17 * stream + place for place in range(12)] for stream in range(_STREAMS)]


def _alone() -> list[list[int]]:
    """What the streams are to receive: by an engine on the CPU that nobody kills."""
    params = SamplingParams(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True)
    with LLM(_MODEL, device="cpu", dtype="float32", kv_cache_memory_bytes=64 << 20) as llm:
        return [result.choices[0].token_ids for result in llm.generate(_prompts(), params, use_tqdm=False)]


async def _wait_for_engines(client: ringline.AsyncClient) -> None:
    """Return when streams find both engines, which differ in their numerics."""
    seen: set[str] = set()
    end = time.monotonic() + _START_TIMEOUT
    while len(seen) < len(_ENGINES):
        if time.monotonic() > end:
            raise ServerError(f"{len(seen)} of {len(_ENGINES)} engines serve after {_START_TIMEOUT:g} s")
        answers = [_Answer() for _ in range(_STREAMS)]
        await asyncio.gather(
            *(_follow(client, ids, 8, answer) for ids, answer in zip(_prompts(), answers, strict=True))
        )
        seen = {answer.numerics for answer in answers}


async def _disturbed(client: ringline.AsyncClient, kill: Callable[[], None]) -> list[_Answer]:
    """The answers of streams that begin together, where ``kill`` is called in their midst."""
    answers = [_Answer() for _ in range(_STREAMS)]
    streams = [
        asyncio.create_task(_follow(client, ids, _TOKENS, answer))
        for ids, answer in zip(_prompts(), answers, strict=True)
    ]
    while not any(stream.done() for stream in streams):
        await asyncio.sleep(0.001)
        counts = [len(answer.token_ids) for answer in answers]
        if min(counts) > 0 and max(counts) >= _BEFORE_THE_KILL:  # one engine may be much faster
            break
    kill()
    await asyncio.wait_for(asyncio.gather(*streams), _STREAM_TIMEOUT)
    return answers


async def _follow(client: ringline.AsyncClient, token_ids: list[int], tokens: int, answer: _Answer) -> None:
    options: ringline.Options = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}
    async with client.stream(token_ids=token_ids, **options) as stream:
        async for event in stream.events():
            if isinstance(event, ringline.Delta):
                answer.token_ids += event.token_ids
            elif isinstance(event, ringline.Started):
                answer.numerics = event.numerics
                answer.moves += bool(event.reason)


class _Ring:
    """A processor, a detokenizer and an engine on each device, on sockets in ``directory``."""

    def __init__(self, place: Place, directory: Path, stack: contextlib.ExitStack) -> None:
        self._place = place
        self._directory = directory
        self._stack = stack
        self._engines: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> str:
        """Start all; returns the processor's address."""
        engines = ["--engines", ",".join(map(self._address, _ENGINES))]
        self._run("detokenizer", "detokenizer", engines)
        self._run("processor", "processor", [*engines, "--detokenizers", self._address("detokenizer")])
        for name in _ENGINES:
            self.start_engine(name)
        return self._address("processor")

    def start_engine(self, name: str) -> None:
        """On the device that is called so."""
        flags = ["--model", str(_MODEL), "--dtype", "float32", "--kv-cache-memory-bytes", "64MiB"]
        flags += ["--device", self._place.device if name == "gpu" else "cpu"]
        if name == "gpu" and not self._place.is_gpu:
            flags += ["--attention-backend", "torch"]  # so that the engines of a rehearsal differ, too
        self._engines[name] = self._run(name, "engine", flags)

    def kill(self, name: str) -> None:
        """SIGKILL an engine."""
        self._engines[name].kill()

    def _address(self, name: str) -> str:
        return f"unix:{self._directory / name}.sock"

    def _run(self, name: str, service: str, flags: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "services.cli", service, "--name", name, "--no-metrics"]
        command += ["--uds", str(self._directory / f"{name}.sock"), *flags]
        return self._stack.enter_context(running(command, self._directory / f"{name}.log"))

    def tell(self) -> None:
        """Print the ends of all logs."""
        for log in sorted(self._directory.glob("*.log")):
            print(f"--- {log.stem}", *log.read_text(errors="replace").splitlines()[-_LOG_LINES:], sep="\n")
