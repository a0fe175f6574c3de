"""What passes between an executor and the process that speaks to Ray for it, and what actors are told.

The executor sends a ``PlacementRequest``. The replies are ``Connected``, then ``Placed``. It sends the address of the
engine, to which actors connect; ``ActorEnded`` tells of each that ends. ``Raised`` may come instead of any of these.
All ends with the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Which cluster, and what is needed there."""

    address: str | None
    """As ``ParallelConfig.ray_address``."""
    namespace: str
    tp_size: int
    """Ranks of a stage, which are on one node."""
    pp_size: int
    """Stages."""
    device: str
    """As ``DeviceConfig.device``: every rank takes a GPU unless it is for a CPU, or no node has one."""
    cpus: int
    """CPUs that a rank takes."""
    titles: Sequence[str]
    """Of ranks, by number."""
    seconds: float
    """How long to wait until there is room."""


class Connected(NamedTuple):
    """The cluster has answered."""


@dataclass(frozen=True, slots=True)
class Place:
    """The node of a stage."""

    node: str
    """Ray's id of it."""
    host: str
    """Name of the machine, or of the container. Nodes of one share its memory."""
    cpus: int
    """All that Ray has there, in use or not."""


@dataclass(frozen=True, slots=True)
class Placed:
    """There is room."""

    engine_host: str
    """Address of this host that every node with ranks reaches."""
    stages: Sequence[Place]


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where ranks connect to, and the key that proves that they are ranks."""

    host: str
    port: int
    key: bytes
    seconds: float
    """For ranks to connect."""


class ActorEnded(NamedTuple):
    """Ray says so, and why."""

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
"""An actor's connections: the two of any rank, what it writes, and one on which nothing is said: its end ends the
actor, and tells of its end."""
