"""Ranks as actors on the nodes of a Ray cluster.

Ray decides where actors run, and starts and ends them. Calls and replies use separate connections to the engine. A
process beside this one speaks to Ray (``cluster``), which is not imported here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import Rank
from engine_core.errors import ConfigError, ExecutorError
from engine_core.executor.ranks.child_process import ChildProcess, ForwardedOutput
from engine_core.executor.ranks.connection import Raised, RankConnections
from engine_core.executor.ranks.launcher import RankLauncher
from engine_core.executor.ranks.process import RankProcess
from engine_core.executor.ray.messages import (
    KINDS,
    ActorEnded,
    Connected,
    EngineAddress,
    Hello,
    Placed,
    PlacementRequest,
)
from engine_core.executor.ray.tcp import TcpListener, shut, wait_at_most

_CONNECT_SECONDS = 30.0
"""Time for the cluster to answer."""
_GRACE_SECONDS = 5.0
"""Waited in addition to the other process's timeout, so that it can report what it waited for; and for it to end."""
_MESSAGE_SECONDS = 3
"""Time for the rest of a rank's sign to arrive, during which no other rank is watched."""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
# Usage statistics are the cluster's decision, and copying this environment to other hosts would be a surprise.
_ENVIRONMENT = ("RAY_USAGE_STATS_ENABLED=0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV=0")

_T = TypeVar("_T")


class RayLauncher(RankLauncher):
    """Puts the ranks of a stage on one node."""

    module = "engine_core.executor.ray.cluster"
    """Its ``main`` speaks to Ray."""
    silence = 3.0  # longer than on one host: a network may pause

    def __init__(self, config: EngineConfig, name: str) -> None:
        super().__init__(config, name)
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "distributed_executor_backend",
                "ray",
                "mp, as Ray is not installed here: pip install 'ringline-server[ray]'",
            )
        address = config.parallel.ray_address
        if address is not None and not _ADDRESS.fullmatch(address):
            raise ConfigError("ray_address", address, "HOST:PORT of a Ray head, such as 10.0.0.1:6379")
        self._cluster: _Cluster | None = None
        self._threads: list[int] = []
        """CPUs of each rank, by number, once placed."""

    def launch(self) -> Sequence[RankProcess]:
        end = time.monotonic() + self.config.parallel.worker_start_timeout
        self._cluster = _Cluster(self.module, f"ringline engine {self.name} ray")
        placed = self._place(self._cluster)
        self.host = placed.engine_host
        return self._cluster.start(self._divide(placed), placed.engine_host, end)

    def _place(self, cluster: _Cluster) -> Placed:
        """The places of the stages, once the cluster has room for them."""
        parallel, device = self.config.parallel, self.config.device
        tp_size, pp_size, size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.world_size
        titles = [self.title(Rank(number % tp_size, tp_size, number // tp_size, pp_size)) for number in range(size)]
        cluster.send(
            PlacementRequest(
                parallel.ray_address,
                parallel.ray_namespace,
                tp_size,
                pp_size,
                device.device,
                device.num_threads or 1,
                titles,
                parallel.worker_start_timeout,
            )
        )
        address = parallel.ray_address or "its default address"
        answers = min(_CONNECT_SECONDS, parallel.worker_start_timeout)
        cluster.reply(Connected, answers, f"no Ray cluster has answered at {address}: --ray-address")
        late = "Ray has not started all ranks: --worker-start-timeout"
        return cluster.reply(Placed, parallel.worker_start_timeout + _GRACE_SECONDS, late)

    def _divide(self, placed: Placed) -> list[Rank]:
        """The ranks, by number; sets ``_threads``, their shares of the CPUs.

        With several engines, each may have as many stages on a node as all of them have on the average one.
        """
        parallel = self.config.parallel
        tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        on_host = Counter(place.host for place in placed.stages)
        on_node = Counter(place.node for place in placed.stages)
        if (engines := parallel.data_parallel_size) > 1:
            average = -(-engines * pp_size // placed.nodes)
            for place in placed.stages:
                on_node[place.node] = max(on_node[place.node], average)
                on_host[place.host] = max(on_host[place.host], min(engines * pp_size, average * place.nodes_on_host))
        ranks = []
        for number in range(parallel.world_size):
            pp, tp = divmod(number, tp_size)
            place = placed.stages[pp]
            # Ray shows an actor only its own GPU, so the local index is always 0.
            ranks.append(
                Rank(tp, tp_size, pp, pp_size, on_host[place.host] * tp_size, 0, parallel.enable_expert_parallel)
            )
            self._threads.append(max(1, place.cpus // (on_node[place.node] * tp_size)))
        return ranks

    def config_of(self, rank: Rank) -> EngineConfig:
        """Divides a node's Ray CPUs among its ranks, unless the options set the number per rank."""
        device = self.config.device
        if device.num_threads is not None:
            return self.config
        return replace(self.config, device=replace(device, num_threads=self._threads[rank.number]))

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class _Cluster:
    """The process that speaks to Ray."""

    def __init__(self, module: str, title: str) -> None:
        self._process = ChildProcess("ray", module, 1, title, environment=_ENVIRONMENT)
        [self._connection] = self._process.connections
        self._why: dict[int, str] = {}
        """Why actors have ended, by rank number."""

    def send(self, message: Any) -> None:
        with suppress(OSError):  # then it has ended, and reading raises why
            self._connection.send(message)

    def reply(self, kind: type[_T], seconds: float, late: str) -> _T:
        """The next message, which must be a ``kind``. Raises the process's error, or ``late`` after ``seconds``."""
        if not self._connection.poll(seconds):
            self._process.kill()
            raise ExecutorError(f"{late} ({seconds:g} s)")
        message = self._receive()
        if isinstance(message, ActorEnded):
            raise ExecutorError(f"the actor of rank {message.number} has ended: {message.why}")
        assert isinstance(message, kind)
        return message

    def _receive(self) -> Any:
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            ending = self._process.ending(_GRACE_SECONDS) or "does not answer"
            raise ExecutorError(f"the process that speaks to Ray {ending}") from None
        if isinstance(message, Raised):
            raise message.error
        return message

    def why_ended(self, number: int, seconds: float) -> str | None:
        """Ray's reason for the end of an actor, if known within ``seconds``."""
        end = time.monotonic() + seconds
        while number not in self._why and self._connection.poll(max(0.0, end - time.monotonic())):
            try:
                message: ActorEnded = self._receive()
            except ExecutorError as error:
                return str(error)
            self._why[message.number] = message.why
        return self._why.get(number)

    def start(self, ranks: Sequence[Rank], host: str, end: float) -> list[RankProcess]:
        """Start actors, and wait until all have connected, at most until the time ``end``."""
        listener = TcpListener(host)
        found: list[dict[str, Connection[Any, Any]]] = [{} for _ in ranks]
        try:
            self.send(EngineAddress(host, listener.port, listener.key, end - time.monotonic()))
            actors: list[RankProcess] = []
            wheres = [""] * len(ranks)
            while missing := [str(rank) for rank, kinds in zip(ranks, found, strict=True) if len(kinds) < len(KINDS)]:
                ready = wait([listener, self._connection], max(0.0, end - time.monotonic()))  # type: ignore[list-item]
                if not ready or self._connection in ready:
                    self.reply(Connected, 0.0, f"{', '.join(missing)} did not start in time: --worker-start-timeout")
                hello: Hello
                connection, hello = listener.accept()
                found[hello.number][hello.kind] = connection
                wheres[hello.number] = f"(pid {hello.pid} on {hello.host})"
            for rank, kinds, where in zip(ranks, found, wheres, strict=True):
                actors.append(RayRank(rank, where, kinds, self.why_ended))
        except BaseException:
            for kinds in found:
                for connection in kinds.values():
                    connection.close()
            raise
        finally:
            listener.close()
        return actors

    def close(self) -> None:
        """End the process, and with it all actors."""
        with suppress(OSError):
            self._connection.send(None)
        if not self._process.wait(_GRACE_SECONDS):
            self._process.kill()
            self._process.wait(_GRACE_SECONDS)
        self._process.close()


class RayRank(RankProcess):
    """A rank in the process of an actor."""

    def __init__(
        self,
        rank: Rank,
        where: str,
        connections: dict[str, Connection[Any, Any]],
        why_ended: Callable[[int, float], str | None],
    ) -> None:
        """Takes over ``connections``, by ``KINDS``. ``why_ended`` takes the rank's number and seconds to wait."""
        self.rank = rank
        self.connections = RankConnections(connections["calls"], connections["signs"])
        wait_at_most(self.connections.signs, _MESSAGE_SECONDS)
        self._where = where
        self._why_ended = why_ended
        self._life = connections["life"]
        self.ended: int | None = self._life.fileno()
        self._writes = connections["output"]
        self._output = ForwardedOutput(str(self), os.fdopen(os.dup(self._writes.fileno()), "rb"))

    def ending(self, seconds: float) -> str | None:
        end = time.monotonic() + seconds
        if not self.wait(seconds):
            return None
        try:
            os.read(self._life.fileno(), 1)
        except TimeoutError:
            return f"{self._where} is out of reach: its host, or the network, is lost{self._output.last_words()}"
        except OSError:  # reset, by a process that has ended
            pass
        why = self._why_ended(self.rank.number, max(0.0, end - time.monotonic()))
        return f"{self._where} has ended" + (f": {why}" if why else "") + self._output.last_words()

    def kill(self) -> None:
        with suppress(OSError):
            shut(self._life, socket.SHUT_WR)

    def wait(self, seconds: float) -> bool:
        return bool(wait([self._life], seconds))

    def close(self) -> None:
        super().close()
        if self.ended is not None:
            self.ended = None
            self._life.close()
            with suppress(OSError):
                shut(self._writes, socket.SHUT_RDWR)
            self._writes.close()
            self._output.close()
