"""The Ray side: a process beside the engine that makes the placement group and the actors, and the actors themselves.

It is a separate process because a Ray driver may end with its cluster, replaces the process's signal handlers, and may
wait without limit for a cluster that does not answer. When it ends, for whatever reason, Ray ends the actors and
removes the placement group. No other module imports ray.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util import get_node_ip_address
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from setproctitle import setproctitle

from engine_core.errors import ConfigError, EngineError, ExecutorError
from engine_core.executor.ranks.connection import Raised, RankConnections
from engine_core.executor.ranks.local_main import end_with_engine
from engine_core.executor.ranks.loop import run_rank
from engine_core.executor.ray.messages import (
    KINDS,
    ActorEnded,
    Connected,
    EngineAddress,
    Hello,
    Place,
    Placed,
    PlacementRequest,
)
from engine_core.executor.ray.tcp import connect

_ANSWER_SECONDS = 5.0
"""Time for an address to accept a TCP connection."""


def main() -> None:
    """Serve one executor until its end. Arguments: those of a ``ChildProcess``."""
    calls, pipe = map(int, sys.argv[1:3])
    title = sys.argv[3]
    setproctitle(title)
    end_with_engine(pipe)
    executor: Connection[Any, Any] = Connection(calls)
    group: PlacementGroup | None = None
    try:
        with suppress(EOFError):
            request: PlacementRequest = executor.recv()
            connect_to_cluster(request)
            executor.send(Connected())
            group, placed, gpus = place(request)
            executor.send(placed)
            start_actors(request, executor.recv(), group, gpus, executor.send)
            executor.recv()
    except EngineError as error:
        executor.send(Raised(error))
    except Exception as error:  # as text: to unpickle Ray's exceptions, the executor would have to import Ray
        executor.send(Raised(ExecutorError(f"Ray: {type(error).__name__}: {_one_line(error)}")))
    if group is not None:
        remove_placement_group(group)
    os._exit(0)  # not ray.shutdown(), after which the thread below would reconnect; Ray ends the job anyway


def connect_to_cluster(request: PlacementRequest) -> None:
    """Become a driver of the cluster. Raises ``ConfigError``; may hang if the address is not a cluster's."""
    address = request.address
    try:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  Ray prints news of nodes; what matters is raised
        if address is not None:
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
        ray.init(
            address or "auto",
            namespace=request.namespace,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
        )
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise ConfigError(
            "ray_address",
            address,
            "the address of a Ray cluster to which this host belongs (ray start --head, or ray start --address=… on "
            f"this host): {_one_line(error)}",
        ) from None
    for number in (signal.SIGINT, signal.SIGTERM):  # Ray has handlers for them, but they are for the engine to drain
        signal.signal(number, signal.SIG_IGN)


def place(request: PlacementRequest) -> tuple[PlacementGroup, Placed, int]:
    """Reserve a bundle for each stage; also returns GPUs per rank. Raises ``ConfigError``, ``ExecutorError``."""
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    totals = {each: node["Resources"] for each, node in nodes.items()}
    has_gpus = any("GPU" in resources for resources in totals.values())
    gpus = 1 if request.device == "cuda" or (request.device == "auto" and has_gpus) else 0
    bundle = {"CPU": float(request.cpus * request.tp_size)} | ({"GPU": float(request.tp_size)} if gpus else {})
    needed = " and ".join(f"{amount:g} {name}s" for name, amount in bundle.items())
    needed = f"room for {request.pp_size} stage(s), each with {needed} of one Ray node"

    def found() -> str:
        free = available_resources_per_node()
        return "; ".join(
            f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']}) has "
            + " and ".join(
                f"{free.get(each, {}).get(name, 0):g} of {node['Resources'].get(name, 0):g} {name}s free"
                for name in bundle
            )
            for each, node in nodes.items()
        )

    stages = [
        int(min(resources.get(name, 0) // amount for name, amount in bundle.items())) for resources in totals.values()
    ]
    if sum(stages) < request.pp_size:
        option, value = ("pipeline", request.pp_size) if any(stages) else ("tensor", request.tp_size)
        expected = f"{needed} (--num-threads is what a rank takes of CPUs); {found()}"
        raise ConfigError(f"{option}_parallel_size", value, expected)
    # On CPUs, stages on one node would share its memory and cores: spread them. GPUs have their own: stay close.
    group = placement_group([bundle] * request.pp_size, strategy="PACK" if gpus else "SPREAD")
    if not group.wait(request.seconds):
        raise ExecutorError(
            f"the Ray cluster has not had {needed} within --worker-start-timeout={request.seconds:g} s; {found()}"
        )
    chosen = [nodes[node] for _, node in sorted(placement_group_table(group)["bundles_to_node_id"].items())]
    on_host = Counter(node["NodeManagerHostname"] for node in nodes.values())
    hosts = [each["NodeManagerHostname"] for each in chosen]
    places = [
        Place(each["NodeID"], host, int(each["Resources"]["CPU"]), on_host[host])
        for each, host in zip(chosen, hosts, strict=True)
    ]
    own = get_node_ip_address()
    alone = all(each["NodeManagerAddress"] == own for each in chosen)
    return group, Placed(len(nodes), "127.0.0.1" if alone else own, places), gpus


def start_actors(
    request: PlacementRequest,
    engine: EngineAddress,
    group: PlacementGroup,
    gpus: int,
    send: Callable[[ActorEnded], None],
) -> None:
    """Start a rank in each actor; a thread reports those that end."""
    runs = {}
    for number, title in enumerate(request.titles):
        actor = ray.remote(RankActor).options(
            name=f"{title} {engine.key.hex()[:8]}",
            num_cpus=request.cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number // request.tp_size),
        )
        runs[actor.remote().run.remote(engine, number)] = number

    def watch() -> None:
        while runs:
            [ended], _ = ray.wait(list(runs))
            number, why = runs.pop(ended), "it has ended"
            try:
                ray.get(ended)
            except Exception as error:
                # Without the actor's identity, which is known, and without Ray's guesses.
                why = _one_line(error).rpartition("The actor is dead because ")[2].partition(" Some common causes")[0]
            with suppress(OSError):
                send(ActorEnded(number, why))

    threading.Thread(target=watch, name="actors", daemon=True).start()


class RankActor:
    """A rank in an actor's process."""

    def run(self, engine: EngineAddress, number: int) -> None:
        """Serve as rank ``number`` of an engine; ends this process."""
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
        end, connections = time.monotonic() + engine.seconds, {}
        for kind in KINDS:
            hello = Hello(number, kind, platform.node(), os.getpid())
            connections[kind] = connect(engine.host, engine.port, engine.key, hello, end - time.monotonic())
        end_with_engine(connections["life"].fileno())
        for standard in (1, 2):
            os.dup2(connections["output"].fileno(), standard)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        run_rank(RankConnections(connections["calls"], connections["signs"]), _set_title)
        sys.stderr.flush()
        os._exit(0)  # a library's exit handlers must not keep the engine waiting


def _set_title(title: str) -> None:
    """Name this process in ``ps`` as Ray has named it before: after that, no other library finds the place."""
    if (set_title := getattr(ray._raylet, "setproctitle", None)) is not None:  # it is private
        set_title(title)


def _end_with_parent() -> None:
    """End this process with its Ray node."""
    wait([os.pidfd_open(os.getppid())])
    os._exit(1)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
