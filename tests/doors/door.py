"""A door for tests: a ring, and a gateway in front of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.guard import end_with_this_program
from tests.ports import HeldPort
from tests.ring import MODEL, ROOT, START_TIMEOUT, Ring, metric_values, running_ring


@dataclass(frozen=True)
class Door:
    """Where a running gateway is, and the ring behind it."""

    url: str
    """Without a path."""
    ring: Ring

    @property
    def api(self) -> str:
        """OpenAI's, as its clients want it."""
        return f"{self.url}/v1"

    @property
    def engine_metrics(self) -> str:
        """Where the engine's metrics are."""
        return self.ring.state.services["engine"].metrics or ""

    def engine_metric(self, name: str) -> float:
        """A series of the engine's metrics, now."""
        return metric_values(self.engine_metrics)[name]

    def becomes_idle(self) -> bool:
        """Whether the engine, within seconds, computes nothing and holds no blocks for anyone."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        end = time.monotonic() + 10
        while busy := any(map(self.engine_metric, names)):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        return not busy


@contextmanager
def running_gateway(directory: Path, processors: str) -> Iterator[str]:
    """The URL of a gateway that answers, for as long as it is wanted; it ends well when it is asked to."""
    port = HeldPort()
    url, log = f"http://127.0.0.1:{port.number}", directory / "gateway.log"
    command = [sys.executable, "-m", "services.cli", "gateway", "--port", str(port.number)]
    command += ["--processors", processors, "--no-metrics", "--log-format", "json"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env={**os.environ})
    end_with_this_program(process)
    try:
        end = time.monotonic() + START_TIMEOUT
        while not _answers(url):
            waiting = process.poll() is None and time.monotonic() < end
            assert waiting, f"the gateway did not start:\n{log.read_text()[-4000:]}"
            time.sleep(0.05)
        yield url
        process.terminate()
        assert process.wait(90) == 0, log.read_text()[-4000:]
    finally:
        process.kill()
        port.release()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
    except urllib.error.HTTPError:
        return True  # it serves, and refuses
    except OSError:
        return False
    return True


@contextmanager
def running_door(directory: Path, *flags: str, model: Path = MODEL) -> Iterator[Door]:
    """``ringline serve`` with ``flags``."""
    with running_ring(directory, *flags, model=model, http=True) as ring:
        yield Door(ring.http, ring)
