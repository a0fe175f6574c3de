"""The ring under test: real processes on unix sockets, with a ``Wire`` in each link between two of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from ringline.detokenizer.v1 import detokenizer_pb2, detokenizer_pb2_grpc
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.common.config.variable_names import PARENT_PID_VARIABLE
from services.common.links.channels import Endpoint, check_health
from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import hello_message
from services.ring.identity import PeerId
from tests.chaos.relay import Wire
from tests.ring import MODEL, ROOT

START_TIMEOUT = 200.0
STOP_MARGIN = 60.0
DRAIN_GRACE = 0.2
"""Seconds. So short that requests of a draining process move elsewhere instead of finishing in it."""


@dataclass(frozen=True)
class Release:
    """A source tree that services are started from."""

    name: str
    root: Path
    module: str = "services.cli"
    """What ``python -m`` runs."""


THIS = Release("this", ROOT)


@dataclass(frozen=True)
class HeldResources:
    """What a service still holds; all zero when it is idle."""

    ledgers: int = 0
    blocks: int = 0
    running: int = 0
    waiting: int = 0
    live_requests: int = 0

    @property
    def empty(self) -> bool:
        return self == HeldResources()


class Process:
    """One service over all of its incarnations."""

    def __init__(self, name: str, address: str, log: Path, flags: list[str], release: Release = THIS) -> None:
        self.name, self.address, self.log, self.release = name, address, log, release
        self.kind = name.partition("-")[0]
        self.flags = flags
        """Of incarnations that start from now on."""
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
        root, module = self.release.root, self.release.module
        command = [sys.executable, "-m", module, self.kind, "--name", self.name, *listen_flags(self.address)]
        command += ["--log-format", "json", "--drain-grace", str(DRAIN_GRACE), *self.flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        environment |= {"PYTHONPATH": f"{root}:{root / 'clients' / 'python'}", PARENT_PID_VARIABLE: str(os.getpid())}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=environment)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.alive:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def hang(self, seconds: float) -> None:
        """SIGSTOP for ``seconds``; another hang meanwhile makes that longer."""
        process = self._process
        self._hung_until = max(self._hung_until, time.monotonic() + seconds)
        self.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if self._process is process and time.monotonic() >= self._hung_until:
            self.signal(signal.SIGCONT)

    async def drain(self) -> int:
        """SIGTERM, and SIGKILL if it does not end; returns the exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        end = time.monotonic() + DRAIN_GRACE + STOP_MARGIN
        while self.alive and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if self.alive:
            self.kill()
        return self._process.returncode if self._process is not None else 0


class Fleet:
    """An async context manager: enter to start all processes."""

    def __init__(
        self,
        directory: Path,
        processors: int = 2,
        detokenizers: int = 2,
        engines: int = 3,
        *,
        model: Sequence[str] = (str(MODEL),),
        patience: float = 120.0,
        releases: Mapping[str, Release] | None = None,
    ) -> None:
        """``model``: the flags that name it to engines; ``patience``: the processors', in seconds.

        ``releases``: what processes run, by their names. Default: all run this tree.
        """
        self._directory = directory
        self._model = model
        self._patience = patience
        counts = {"engine": engines, "detokenizer": detokenizers, "processor": processors}
        self.names = {kind: [f"{kind}-{index}" for index in range(count)] for kind, count in counts.items()}
        self.wires: dict[str, Wire] = {}
        self.processes: dict[str, Process] = {}
        for name in (name for names in self.names.values() for name in names):
            log, release = directory / f"{name}.log", (releases or {}).get(name, THIS)
            self.processes[name] = Process(name, f"unix:{directory / name}.sock", log, self._flags(name), release)
        self._fronts = self._wires("client", "processor")

    def _flags(self, name: str) -> list[str]:
        kind = name.partition("-")[0]
        if kind == "engine":
            return engine_flags(self._model)
        flags = ["--no-metrics", "--engines", self._wires(name, "engine")]
        if kind == "processor":
            # So many engines are killed that the limit for poisonous requests would hit innocent ones.
            flags += ["--detokenizers", self._wires(name, "detokenizer"), "--max-crash-resubmits", "1000"]
            flags += ["--patience", str(self._patience)]
        return flags

    def _wires(self, name: str, kind: str) -> str:
        """Create wires from ``name`` to all processes of ``kind``; returns their addresses."""
        addresses = []
        for target in self.names[kind]:
            wire = Wire(
                f"{name}>{target}", self._directory / f"{name}.{target}.sock", self._directory / f"{target}.sock"
            )
            self.wires[wire.name] = wire
            addresses.append(f"unix:{wire.path}")
        return ",".join(addresses)

    @property
    def fronts(self) -> str:
        return self._fronts

    async def __aenter__(self) -> Fleet:
        for wire in self.wires.values():
            await wire.start()
        for process in self.processes.values():
            process.start()
        await self.wait_serving(*self.processes)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for wire in self.wires.values():
            wire.close()

    async def wait_serving(self, *names: str) -> None:
        """Return when health checks of all say SERVING."""
        await wait_serving(self.processes[name] for name in names)

    async def heal(self) -> None:
        """End every fault, and start processes that do not run."""
        for wire in self.wires.values():
            wire.release()
        for process in self.processes.values():
            process.signal(signal.SIGCONT)
            process.start()
        await self.wait_serving(*self.processes)

    async def held_resources(self, name: str) -> HeldResources:
        """Of an engine or a detokenizer."""
        process = self.processes[name]
        return await held_resources(process.kind, process.address)


def engine_flags(model: Sequence[str]) -> list[str]:
    """``model``: the flags that name it."""
    return ["--no-metrics", "--kv-cache-memory-bytes", "32MiB", "--served-model-name", "tiny", "--model", *model]


def listen_flags(address: str) -> list[str]:
    if address.startswith("unix:"):
        return ["--uds", address.removeprefix("unix:")]
    host, _, port = address.rpartition(":")
    return ["--host", host, "--port", port]


async def wait_serving(processes: Iterable[Process]) -> None:
    """Return when health checks of all say SERVING."""
    end = time.monotonic() + START_TIMEOUT
    for process in processes:
        async with Endpoint(process.address).open() as channel:
            while await check_health(channel, seconds=1.0) != "SERVING":
                waiting = process.alive and time.monotonic() < end
                assert waiting, f"{process.name} does not serve:\n{process.log.read_text()[-4000:]}"
                await asyncio.sleep(0.05)


async def held_resources(kind: str, address: str) -> HeldResources:
    """Of an engine or a detokenizer."""
    async with Endpoint(address).open() as channel:
        if kind == "engine":
            stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
            load = (await stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=60)).load
            return HeldResources(load.ledgers, load.blocks_used, load.running_choices, load.waiting_requests)
        return HeldResources(live_requests=await _live_requests(channel))


async def _live_requests(channel: grpc.aio.Channel) -> int:
    """Of a detokenizer, which reports its load to subscribers."""
    hello = hello_message(PeerId("chaos", new_incarnation()))
    stub: Any = detokenizer_pb2_grpc.DetokenizerServiceStub(channel)
    call = stub.Subscribe(detokenizer_pb2.SubscribeRequest(hello=hello), timeout=60)
    try:
        while not (frame := await call.read()).HasField("load"):
            pass
        return int(frame.load.live_requests)
    finally:
        call.cancel()
