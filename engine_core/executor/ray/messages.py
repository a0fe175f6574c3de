"""The messages between an executor and the process that speaks to Ray for it, and those for actors.

    executor → process     process → executor
    PlacementRequest       Connected, then Placed
    EngineAddress          ActorEnded, for each actor that ends

``Raised`` may replace any reply. Actors connect to the ``EngineAddress``. All ends with the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The cluster, and the resources needed there."""

    address: str | None
    """As ``ParallelConfig.ray_address``."""
    namespace: str
    tp_size: int
    """Ranks per stage, all on one node."""
    pp_size: int
    """Number of stages."""
    device: str
    """As ``DeviceConfig.device``: every rank takes a GPU unless it is for a CPU, or no node has one."""
    cpus: int
    """CPUs per rank."""
    titles: Sequence[str]
    """Of ranks, by number."""
    seconds: float
    """How long to wait for room."""


class Connected(NamedTuple):
    """The cluster has answered."""


@dataclass(frozen=True, slots=True)
class Place:
    """The node of a stage."""

    node: str
    """Ray's node id."""
    host: str
    """Name of the machine or container. Nodes with the same host share its memory."""
    cpus: int
    """All of Ray's CPUs there, in use or not."""
    nodes_on_host: int
    """Nodes of the cluster on that host."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The cluster has room for all stages."""

    nodes: int
    """All nodes of the cluster."""
    engine_host: str
    """Address of this host that every node with ranks reaches."""
    stages: Sequence[Place]


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address to which ranks connect, and the key that proves that they are ranks."""

    host: str
    port: int
    key: bytes
    seconds: float
    """Time for ranks to connect."""


class ActorEnded(NamedTuple):
    """An actor has ended, according to Ray."""

    number: int
    """Of its rank."""
    why: str


class Hello(NamedTuple):
    """The first message on each of an actor's connections."""

    number: int
    """Of its rank."""
    kind: str
    """One of ``KINDS``."""
    host: str
    pid: int


KINDS = ("calls", "signs", "output", "life")
"""An actor's connections: the two of any rank, its output, and a silent one: closing it ends the actor, and it closes
when the actor ends."""
