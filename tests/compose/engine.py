"""The Docker engine, and the stack of compose.yaml on it, by their own commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RING = ("processor", "detokenizer", "engine")
KINDS = (*RING, "gateway")
ENGINES = ("engine", "engine-tp2", "engine-ray")
"""All that answer to the name engine; those after the first are of profiles."""
PROFILES = ("tp2", "ray")
METRICS = {"processor": 60051, "detokenizer": 60071, "gateway": 18000, **dict.fromkeys(ENGINES, 60061)}
PREFIX, TAG = "ringline", "compose-test"
START_TIMEOUT = 240.0
HISTORY = "{{.Size}} {{.CreatedBy}}"
FIRST_OWN_LAYER = "groupadd --gid 10001 ringline"
"""Of the command that makes the first layer above the base."""

NO_ENGINE = """\
This needs a Docker engine, and there is none that answers ({reason}).
Start one, or let DOCKER_HOST name it; the user that runs this must be allowed to use it."""
NO_COMPOSE = "This needs docker compose v2 (`docker compose`) or docker-compose 1.29: neither is installed."


class Unusable(Exception):
    """A prerequisite is missing; the text names it."""


class Failed(Exception):
    """The stack does not do what it should."""


def run(*command: str, env: dict[str, str] | None = None, timeout: float = 600.0) -> str:
    """What a command prints; raises ``Failed`` with its last words."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout.strip()


def compose_command() -> list[str]:
    """The compose that is there, v2 before 1.29; raises ``Unusable`` without it or without a Docker engine."""
    if shutil.which("docker") is None:
        raise Unusable(NO_ENGINE.format(reason="docker is not installed"))
    try:
        run("docker", "info", timeout=30)
    except (Failed, subprocess.TimeoutExpired) as error:
        raise Unusable(NO_ENGINE.format(reason=str(error).splitlines()[-1])) from None
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            run(*command, "version", timeout=30)
        except (Failed, FileNotFoundError):
            continue
        return command
    raise Unusable(NO_COMPOSE)


@dataclass
class Stack:
    """One project, with images and ports of its own, so that it disturbs no other stack of this machine."""

    directory: Path
    """For files of this run."""
    ports: range
    """For clients; as many above them are for metrics, and as many above those for clients of HTTP."""
    build_network: str | None
    compose: list[str] = field(default_factory=compose_command)
    overrides: tuple[str, ...] = ()
    """Files beside compose.yaml that change it."""
    profiles: tuple[str, ...] = ()
    project: str = field(default_factory=lambda: f"ringline-test-{os.getpid()}")

    def __post_init__(self) -> None:
        self._files = [word for name in ("compose.yaml", *self.overrides) for word in ("-f", str(ROOT / name))]
        if self.build_network is not None:  # docker-compose 1.29 knows no flag for it
            override = self.directory / "build.json"
            built = (*KINDS, *ENGINES, "ray-head")
            build = {kind: {"build": {"network": self.build_network}} for kind in built}
            override.write_text(json.dumps({"services": build}))
            self._files += ["-f", str(override)]

    def __call__(self, *arguments: str, timeout: float = 600.0) -> str:
        """Run a command of compose."""
        env = {
            "IMAGE_PREFIX": PREFIX,
            "IMAGE_TAG": TAG,
            "RINGLINE_PUBLISH": f"127.0.0.1:{self.ports[0]}-{self.ports[-1]}",
            "RINGLINE_METRICS_PUBLISH": f"127.0.0.1:{self.ports[-1] + 1}-{self.ports[-1] + len(self.ports)}",
            "RINGLINE_HTTP_PUBLISH": f"127.0.0.1:{self.http_ports[0]}-{self.http_ports[-1]}",
        }
        profiles = [word for name in self.profiles for word in ("--profile", name)]
        return run(*self.compose, "-p", self.project, *self._files, *profiles, *arguments, env=env, timeout=timeout)

    @property
    def http_ports(self) -> range:
        """Where gateways may be."""
        first = self.ports[-1] + len(self.ports) + 1
        return range(first, first + len(self.ports))

    @property
    def addresses(self) -> list[str]:
        """Where processors may be: those that start again take any port of the range."""
        return [f"127.0.0.1:{port}" for port in self.ports]

    def image(self, kind: str) -> str:
        return f"{PREFIX}-{kind}:{TAG}"

    def containers(self, kind: str) -> list[str]:
        """Ids of the running ones of a service, oldest first."""
        labels = {"com.docker.compose.project": self.project, "com.docker.compose.service": kind}
        filters = [word for name, value in labels.items() for word in ("--filter", f"label={name}={value}")]
        return run("docker", "ps", "-q", "--no-trunc", *filters).split()[::-1]

    def wait_healthy(self, counts: dict[str, int]) -> None:
        """Return when ``counts`` containers of each service are healthy."""
        end = time.monotonic() + START_TIMEOUT
        while True:
            healthy = {kind: self._healthy(kind) for kind in counts}
            if healthy == counts:
                return
            if time.monotonic() > end:
                raise Failed(f"healthy after {START_TIMEOUT:.0f} s: {healthy}\n{self('logs', '--tail', '20')}")
            time.sleep(0.5)

    def wait_linked(self, counts: dict[str, int]) -> None:
        """Return when every processor is linked to ``counts`` engines and detokenizers."""
        end = time.monotonic() + START_TIMEOUT
        engines = sum(counts.get(kind, 0) for kind in ENGINES)
        wanted = {"ringline_engines": float(engines), "ringline_detokenizers": float(counts["detokenizer"])}
        while True:
            found = [
                {name: gauges.get(name) for name in wanted}
                for gauges in (self._gauges("processor", container) for container in self.containers("processor"))
            ]
            if found and all(one == wanted for one in found):
                return
            if time.monotonic() > end:
                raise Failed(f"the processors have {found}, not {wanted}")
            time.sleep(0.5)

    def wait_restarted(self, container: str, before: int) -> None:
        """Return when a container was restarted since ``before`` restarts."""
        end = time.monotonic() + START_TIMEOUT
        while int(inspect(container, "{{.RestartCount}}")) <= before:
            if time.monotonic() > end:
                raise Failed(f"it does not start again:\n{run('docker', 'logs', '--tail', '20', container)}")
            time.sleep(0.2)

    def _healthy(self, kind: str) -> int:
        states = [inspect(container, "{{.State.Health.Status}}") for container in self.containers(kind)]
        return states.count("healthy")

    def busiest(self, kind: str) -> tuple[str, float]:
        """The container of a service with the most requests, and their number."""
        gauge = "vllm:num_requests_running" if kind in ENGINES else "ringline_live_requests"
        loads = {container: self._gauges(kind, container).get(gauge, 0.0) for container in self.containers(kind)}
        return max(loads.items(), key=lambda item: item[1])

    def _gauges(self, kind: str, container: str) -> dict[str, float]:
        """A service's metrics without labels; they are published nowhere."""
        direct = "urllib.request.build_opener(urllib.request.ProxyHandler({}))"  # Docker may set a proxy in containers
        url = f"http://127.0.0.1:{METRICS[kind]}/metrics"
        ask = f"import urllib.request; print({direct}.open({url!r}).read().decode())"
        try:
            lines = run("docker", "exec", container, "python", "-c", ask, timeout=60).splitlines()
        except Failed:  # it is just starting again
            return {}
        values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, value in values}


def inspect(thing: str, template: str) -> Any:
    """A field of a container or an image, as text."""
    try:
        return run("docker", "inspect", "--format", template, thing)
    except Failed:  # it is gone meanwhile
        return ""


def own_bytes(image: str) -> int:
    """Bytes that the Dockerfile adds to its base image."""
    return added_bytes(run("docker", "history", "--no-trunc", "--human=false", "--format", HISTORY, image))


def added_bytes(history: str) -> int:
    """Of a history, latest layer first: the layers down to the first one of the stage ``runtime``."""
    size = 0
    for line in history.splitlines():
        layer, _, made_by = line.partition(" ")
        size += int(layer)
        if FIRST_OWN_LAYER in made_by:
            return size
    raise Failed(f"no layer was made by {FIRST_OWN_LAYER!r}")


def kill(container: str, image: str) -> None:
    """End a container without a word, as a crash would: `docker kill` would switch off its restart policy."""
    _signal(inspect(container, "{{.State.Pid}}"), signal.SIGKILL, image)


def stop_service(container: str, image: str) -> None:
    """Stop the process of a container's service, which is the child of its first one, as a hang would."""
    first = inspect(container, "{{.State.Pid}}")
    _, *processes = run("docker", "top", container, "-o", "pid,ppid").splitlines()
    (service,) = (pid for pid, parent in map(str.split, processes) if parent == first)
    _signal(service, signal.SIGSTOP, image)


def kill_process(container: str, title: str, image: str) -> None:
    """Kill the process of a container whose command line has ``title``."""
    _, *processes = run("docker", "top", container, "-o", "pid,args").splitlines()
    (process,) = (line.split()[0] for line in processes if title in line)
    _signal(process, signal.SIGKILL, image)


def _signal(process: str, number: signal.Signals, image: str) -> None:
    run(
        *("docker", "run", "--rm", "--pid", "host", "--user", "0", "--entrypoint", "python", image),
        *("-c", f"import os; os.kill({process}, {number.value})"),
    )


def free_ports(count: int) -> range:
    """Neighbouring ports that nobody listens on now, nor on twice as many above them."""
    for first in range(52000, 60000, 3 * count):
        try:
            for port in range(first, first + 3 * count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return range(first, first + count)
    raise Unusable("there are no free ports")
