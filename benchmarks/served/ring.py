"""The ring on this machine (``ringline serve``, or one that runs already), and the traffic for every server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ringline

from benchmarks.served.processes import ServerError, failure, free_port, running, wait_for_port
from services.cli.supervise.runtime_directory import running_stacks

_START_TIMEOUT = 120.0
_CLIENT_TIMEOUT = 600.0
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of a measurement."""

    requests: int
    concurrency: int
    prompt: int
    output: int
    warmup: int = 2


@dataclass(frozen=True, slots=True)
class Ring:
    """The addresses of a running ring."""

    processor: str
    engine: str | None
    """The engine's address; None if not known, because the ring was not started here."""
    seconds_to_first_token: float | None
    http: str | None = None
    """The gateway's URL; None if there is none, or it is not known."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """Process ids keyed by service; empty if not known."""


@contextlib.contextmanager
def serve(
    model: Path, flags: Sequence[str], logs: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Ring]:
    """Run ``ringline serve`` for ``model``, with these further flags, while the body runs.

    ``environment`` is added to this process's.
    """
    address, log = f"127.0.0.1:{free_port()}", logs / "ringline-serve.log"
    command = [sys.executable, "-m", "services.cli", "serve", str(model), *flags]
    command += ["--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-metrics"]
    if "--http-port" not in flags:  # a variable, because earlier releases do not know the flag
        environment = {"RINGLINE_HTTP": "false", **(environment or {})}
    begun = time.monotonic()
    with running(command, log, environment) as process:
        seconds = _first_token(address, process, begun, log)
        [stack] = [stack for stack in running_stacks() if stack.pid == process.pid]
        if stack.http_url is not None:
            wait_for_port(process, int(stack.http_url.rpartition(":")[2]), _START_TIMEOUT, log)
        yield Ring(
            address,
            stack.services["engine"].address,
            seconds,
            stack.http_url,
            {name: service.pid for name, service in stack.services.items()},
        )


def _first_token(address: str, process: subprocess.Popen[bytes], begun: float, log: Path) -> float:
    """Seconds until a request that is sent as soon as possible gets its token."""
    while process.poll() is None and time.monotonic() < begun + _START_TIMEOUT:
        with contextlib.suppress(ringline.RingError), ringline.Client(address, patience=0) as client:
            client.generate(token_ids=[100] * 16, max_tokens=1, temperature=0.0, ignore_eos=True)
            return time.monotonic() - begun
        time.sleep(0.02)
    raise failure(log)


def load(ring: Ring, traffic: Traffic, *, engine: bool = False) -> dict[str, Any]:
    """The client's measurement: text through the ring, or (``engine``) token ids directly to the engine."""
    if not engine:
        return run_client(sys.executable, "ring", ring.processor, "", traffic)
    if ring.engine is None:
        raise ServerError("the engine's address is not known")
    return run_client(sys.executable, "ring-engine", ring.engine, "", traffic)


def load_http(ring: Ring, interpreter: str, model: str, traffic: Traffic) -> dict[str, Any]:
    """The measurement of a client that speaks HTTP to the gateway; ``interpreter`` has aiohttp."""
    if ring.http is None:
        raise ServerError("there is no gateway")
    return run_client(interpreter, "gateway", ring.http, model, traffic)


def run_client(interpreter: str, wire: str, address: str, model: str, traffic: Traffic) -> dict[str, Any]:
    """Run ``benchmarks.served.client`` and parse its output. Raises ``ServerError``."""
    command = [interpreter, "-m", "benchmarks.served.client", wire, address, model]
    command += [f"--requests={traffic.requests}", f"--concurrency={traffic.concurrency}", f"--warmup={traffic.warmup}"]
    command += [f"--input-len={traffic.prompt}", f"--output-len={traffic.output}"]
    figures: dict[str, Any] = json.loads(run(command) or "{}")
    if figures.get("failed", 1):
        raise ServerError(f"the client failed: {figures.get('failures')}")
    return figures


def run(command: Sequence[str]) -> str:
    """The last line that a client prints. Raises ``ServerError`` if it fails."""
    path = [str(_ROOT), str(_ROOT / "clients" / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT, env=environment)
    if done.returncode:
        raise ServerError(f"the client failed: {done.stderr.strip()[-500:]}")
    return (done.stdout.splitlines() or [""])[-1]
