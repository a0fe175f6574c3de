"""Vectors over HTTP, in turns with the engine alone."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Row
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.served.processes import failure, free_port, running
from benchmarks.work import Outcome, Work
from benchmarks.worker import Worker, WorkerSpec
from benchmarks.workers.embedder import texts_of
from services.cli.supervise.runtime_directory import running_stacks

SERVED, OFFLINE = "over HTTP", "engine alone"
_START_TIMEOUT, _REQUEST_TIMEOUT = 120.0, 120.0
_ROUND_TOKENS = 4096


class Door:
    """A connection to ``/v1/embeddings`` that is kept."""

    def __init__(self, url: str, model: str) -> None:
        self._connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=_REQUEST_TIMEOUT)
        self._model = model

    def embed(self, texts: list[str]) -> list[bytes]:
        """The vectors as bytes of float32. Raises ``RuntimeError`` with the answer if it is an error."""
        body = json.dumps({"model": self._model, "input": texts, "encoding_format": "base64"})
        self._connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content[:300].decode(errors='replace')}")
        data: list[dict[str, Any]] = json.loads(content)["data"]
        return [base64.b64decode(each["embedding"]) for each in data]

    def run(self, work: Work) -> Outcome:
        """As an engine in a worker does it."""
        calls = texts_of(work)
        begun = time.perf_counter()
        for texts in calls:
            if len(self.embed(texts)) != len(texts):
                raise RuntimeError("a text did not get its vector")
        return Outcome(time.perf_counter() - begun)


@contextlib.contextmanager
def serve(model: Path, logs: Path) -> Iterator[Door]:
    """Run ``ringline serve`` for ``model`` while the body runs."""
    log = logs / "ringline-serve.log"
    command = [sys.executable, "-m", "services.cli", "serve", str(model), "--dtype", "float32", "--host", "127.0.0.1"]
    command += ["--port", str(free_port()), "--http-port", "0", "--no-metrics"]
    with running(command, log) as process:
        deadline = time.monotonic() + _START_TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            for stack in running_stacks():
                if stack.pid != process.pid or stack.http_url is None:
                    continue
                door = Door(stack.http_url, model.name)
                with contextlib.suppress(OSError, RuntimeError):
                    door.embed(["self"])
                    yield door
                    return
            time.sleep(0.2)
        raise failure(log)


def served_rows(models: Mapping[str, Path], tokens: Sequence[int], batches: Sequence[int], rounds: int) -> list[Row]:
    """A row for each model and work: texts per second, and their ratio."""
    rows: list[Row] = []
    for name, model in models.items():
        options = {"model": str(model), "dtype": "float32"}
        spec = WorkerSpec(OFFLINE, sys.executable, "ringline_embedder", options, {})
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(folder)
            with serve(model, logs) as door, Worker(spec, logs) as worker:
                rows += [
                    {"model": name, **_contest(door.run, worker.run, length, batch, rounds)}
                    for length in tokens
                    for batch in batches
                ]
    return rows


def _contest(
    door: Callable[[Work], Outcome], engine: Callable[[Work], Outcome], tokens: int, batch: int, rounds: int
) -> Row:
    calls = max(1, _ROUND_TOKENS // (tokens * batch))

    def taker(run: Callable[[Work], Outcome]) -> Callable[[int], float]:
        return lambda number: batch * calls / run(Work(batch, tokens, 0, seed=number + 1, calls=calls)).seconds

    takers = {SERVED: taker(door), OFFLINE: taker(engine)}
    for take in takers.values():
        take(-1)
    taken = interleave(rounds, takers)
    found = ratio(taken[SERVED], taken[OFFLINE])
    rates = {f"{name}, texts/s": Figure.of(values).median for name, values in taken.items()}
    return {
        "tokens": tokens,
        "at a time": batch,
        **rates,
        "served / offline": found.median,
        "low": found.lowest,
        "high": found.highest,
    }
