"""Services as processes of their own, each over all of its lives: what they run, what they hold, what they tell."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringline.detokenizer.v1 import detokenizer_pb2, detokenizer_pb2_grpc
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from benchmarks.guard import end_with_this_program
from services.common.config.variable_names import PARENT_PID_VARIABLE
from services.common.links.channels import Endpoint, check_health
from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import hello_message
from services.ring.identity import PeerId
from tests.ring import ROOT, START_TIMEOUT

STOP_TIMEOUT = 90.0


@dataclass(frozen=True)
class Release:
    """What a service is started from."""

    name: str
    root: Path
    """Of the source tree."""
    module: str = "services.cli"
    """What ``python -m`` runs."""
    python: Path | str = sys.executable


THIS = Release("this", ROOT)


class Process:
    """One service over all of its incarnations."""

    def __init__(self, name: str, address: str, log: Path, flags: Sequence[str], release: Release = THIS) -> None:
        """``address``: with port 0 any port, which is then read from the log."""
        self.name, self.address, self.log, self.release = name, address, log, release
        self.kind = name.partition("-")[0]
        self.flags = flags
        """Of incarnations that start from now on."""
        self.is_supervised = False
        """Whether something starts it again when it has ended."""
        self._process: subprocess.Popen[bytes] | None = None
        self._hung_until = 0.0

    @property
    def pid(self) -> int:
        """Of the current incarnation, or of the last one."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process unless it runs."""
        if self.alive:
            return
        root = self.release.root
        host, _, port = self.address.rpartition(":")
        listen = ["--uds", port] if host == "unix" else ["--host", host, "--port", port]
        command = [self.release.python, "-m", self.release.module, self.kind, "--name", self.name, *listen]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        environment |= {"PYTHONPATH": f"{root}:{root / 'clients' / 'python'}", PARENT_PID_VARIABLE: str(os.getpid())}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--log-format", "json", *self.flags], cwd=root, stdout=log, stderr=log, env=environment
            )
        end_with_this_program(self._process)  # which is asked to, at first; the kernel kills it at once if that dies

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.alive:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)

    def wait(self) -> int:
        """Return the exit code once it has ended; SIGKILL if it does not."""
        process = self._process
        assert process is not None
        try:
            return process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    async def drain(self) -> int:
        """SIGTERM, and SIGKILL if it does not end; returns the exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return await asyncio.to_thread(self.wait)

    async def hang(self, seconds: float) -> None:
        """SIGSTOP for ``seconds``; another hang meanwhile makes that longer."""
        process = self._process
        self._hung_until = max(self._hung_until, time.monotonic() + seconds)
        self.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if self._process is process and time.monotonic() >= self._hung_until:
            self.signal(signal.SIGCONT)

    async def wait_serving(self) -> None:
        """Return when its health checks say SERVING."""
        end = time.monotonic() + START_TIMEOUT
        async with Endpoint(self.address).open() as channel:
            while await check_health(channel, seconds=1.0) != "SERVING":
                waiting = (self.alive or self.is_supervised) and time.monotonic() < end
                assert waiting, f"{self.name} does not serve:\n{self.log.read_text()[-4000:]}"
                await asyncio.sleep(0.05)

    async def held(self) -> HeldResources:
        return await held_resources(self.kind, self.address)

    def records(self) -> list[dict[str, Any]]:
        """What it has logged: gRPC's own lines are not among them, nor is a line that is just being written."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        return False


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class HeldResources:
    """What a service still holds; all zero when it is idle."""

    ledgers: int = 0
    blocks: int = 0
    running: int = 0
    waiting: int = 0
    live_requests: int = 0


async def held_resources(kind: str, address: str) -> HeldResources:
    """Of an engine or a detokenizer, which reports its load to subscribers."""
    async with Endpoint(address).open() as channel:
        if kind == "engine":
            stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
            load = (await stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=60)).load
            return HeldResources(load.ledgers, load.blocks_used, load.running_choices, load.waiting_requests)
        hello = hello_message(PeerId("chaos", new_incarnation()))
        stub = detokenizer_pb2_grpc.DetokenizerServiceStub(channel)
        call = stub.Subscribe(detokenizer_pb2.SubscribeRequest(hello=hello), timeout=60)
        try:
            while not (frame := await call.read()).HasField("load"):
                pass
            return HeldResources(live_requests=frame.load.live_requests)
        finally:
            call.cancel()
