"""vLLM's gRPC engine and, in front of it, the SMG gateway (in Rust: tokenizes, detokenizes, speaks HTTP)."""

from __future__ import annotations

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.served.processes import failure, free_port, running, wait_for_port
from benchmarks.served.ring import Traffic, run_client

_ENGINE_TIMEOUT, _GATEWAY_TIMEOUT = 240.0, 60.0


@dataclass(frozen=True, slots=True)
class PeerServers:
    """The servers' addresses."""

    interpreter: str
    gateway: str
    engine: str
    model: str


@contextlib.contextmanager
def serve(interpreter: str, model: Path, environment: dict[str, str], logs: Path) -> Iterator[PeerServers]:
    """Serve ``model`` in bfloat16 while the body runs; ``environment``: the engine's environment variables."""
    engine_port, gateway_port, engine_log, gateway_log = free_port(), free_port(), logs / "vllm.log", logs / "smg.log"
    engine = [interpreter, "-m", "vllm.entrypoints.launchers.grpc_server", "--model", str(model)]
    engine += ["--host", "127.0.0.1", "--port", str(engine_port), "--dtype", "bfloat16"]
    engine += ["--max-model-len", "2048", "--max-num-seqs", "256", "--enforce-eager"]
    gateway = [interpreter, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(gateway_port)]
    gateway += ["--prometheus-port", str(free_port()), "--worker-urls", f"grpc://127.0.0.1:{engine_port}"]
    gateway += ["--model-path", str(model), "--policy", "round_robin", "--log-level", "warn"]
    gateway += ["--worker-startup-check-interval", "1"]
    offline = {"HF_HUB_OFFLINE": "1"}
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(running(engine, engine_log, offline | environment))
        wait_for_port(process, engine_port, _ENGINE_TIMEOUT, engine_log)
        stack.enter_context(running(gateway, gateway_log, offline))
        url = f"http://127.0.0.1:{gateway_port}"
        _wait_until_ready(url, gateway_log)
        yield PeerServers(interpreter, url, f"127.0.0.1:{engine_port}", str(model))


def _wait_until_ready(url: str, log: Path) -> None:
    deadline = time.monotonic() + _GATEWAY_TIMEOUT
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError), direct.open(f"{url}/readiness") as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise failure(log)


def load(servers: PeerServers, traffic: Traffic, *, engine: bool = False) -> dict[str, Any]:
    """The client's measurement: text through the gateway, or (``engine``) token ids directly to vLLM's engine."""
    wire, address = ("vllm-engine", servers.engine) if engine else ("gateway", servers.gateway)
    return run_client(servers.interpreter, wire, address, servers.model, traffic)
