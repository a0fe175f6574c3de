"""The running ring for tests: ``ringline serve`` on the bundled model, real processes behind one address or two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from benchmarks.guard import end_with_this_program
from services.cli.supervise.runtime_directory import StackState, running_stacks
from tests.loopback import DEAD_PROXY

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "checkpoints" / "tiny"
START_TIMEOUT = 200.0


@dataclass
class Ring:
    """A running stack."""

    process: subprocess.Popen[bytes]
    state: StackState
    log: Path

    @property
    def address(self) -> str:
        """Of the processor."""
        return self.state.services["processor"].address

    @property
    def engine_address(self) -> str:
        return self.state.services["engine"].address

    @property
    def addresses(self) -> dict[str, str]:
        """Of every service of the ring, by its name; not the gateway's, which is ``http``."""
        return {name: service.address for name, service in self.state.services.items() if name != "gateway"}

    @property
    def http(self) -> str:
        """The gateway's URL, such as http://127.0.0.1:8000."""
        return self.state.services["gateway"].address

    def pid(self, service: str) -> int:
        return self.state.services[service].pid

    def process_lives(self, service: str) -> bool:
        """Whether it is the process that was started first."""
        return Path(f"/proc/{self.pid(service)}").exists()

    def metric(self, service: str, name: str) -> float:
        """A series of one service's metrics, now."""
        return metric_values(self.state.services[service].metrics or "")[name]

    def load(self) -> engine_pb2.Load:
        """Of the engine, now."""
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(self.engine_address, options=options) as channel:
            return engine_pb2_grpc.EngineServiceStub(channel).GetLoad(engine_pb2.GetLoadRequest(), timeout=60).load


def metric_values(url: str) -> dict[str, float]:
    """What a service's metrics are at ``url``, by series without labels."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


@contextmanager
def running_ring(directory: Path, *flags: str, model: Path = MODEL, http: bool = False) -> Iterator[Ring]:
    """A stack that serves, and whose processes end well when it is asked to end. ``http``: with a gateway."""
    log = directory / "serve.log"
    command = [sys.executable, "-m", "services.cli", "serve", str(model), "--port", "0"]
    command += ["--http-port=0" if http else "--no-http", "--kv-cache-memory-bytes", "64MiB", "--log-format", "json"]
    command += flags
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **DEAD_PROXY}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment)
    end_with_this_program(process)
    try:
        end = time.monotonic() + START_TIMEOUT
        while '"event": "ready"' not in log.read_text():
            waiting = process.poll() is None and time.monotonic() < end
            assert waiting, f"the ring did not start:\n{log.read_text()[-4000:]}"
            time.sleep(0.05)
        yield Ring(process, next(state for state in running_stacks() if state.pid == process.pid), log)
        assert process.poll() is None, "a test brought the ring down"
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
    finally:
        process.kill()


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """One stack for all tests that leave it as they found it."""
    with running_ring(tmp_path_factory.mktemp("ring"), "--vllm-engine-api", http=True) as running:
        yield running
