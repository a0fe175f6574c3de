"""Peer discovery: links to given addresses, and to the addresses that given names resolve to; one link per peer.

``10.0.0.1:50061``, ``[::1]:50061`` and ``unix:path`` are addresses. The host of ``engine:50061`` is a name: each of
its addresses is a peer (``--scale`` of Docker Compose, a headless service of Kubernetes). Names are resolved
periodically, so new processes are found and stopped ones dropped; an established link stays, whatever DNS answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol

import structlog

from services.common.config.addresses import host_and_port, is_dns_name, join_address
from services.common.links.redial import LinkRefused
from services.ring.identity import PeerId

log = structlog.get_logger(__name__)

MAX_LINKS = 256
"""The most addresses dialled at the same time; an engine accepts the same number of peers."""
_UNRESOLVED_INTERVAL = 1.0
"""The longest pause in seconds between two look-ups of a name without addresses: services start in any order."""
Resolve = Callable[[str, int], Awaitable[frozenset[str]]]


class Link(Protocol):
    """Keeps a link to one address."""

    @property
    def up(self) -> bool:
        """Whether the link is established."""

    async def run(self) -> None:
        """Dial, run the link, and redial when it ends, until cancelled."""


async def resolve(host: str, port: int) -> frozenset[str]:
    """The addresses of a name, with the port; none if the name does not exist. Raises ``OSError`` if DNS fails."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return frozenset()
        raise
    return frozenset(join_address(str(place[0]), port) for *_, place in found)


async def resolve_target(target: str) -> list[str]:
    """Every address of ``target`` if it is a name that has some, else ``target`` itself."""
    found: frozenset[str] = frozenset()
    if is_dns_name(target):
        with contextlib.suppress(OSError):
            found = await resolve(*host_and_port(target))
    return sorted(found) or [target]


class Discovery:
    """The links of a process to its engines, or to its detokenizers."""

    def __init__(
        self,
        addresses: Iterable[str],
        dial: Callable[[str, str | None], Link],
        *,
        interval: float,
        resolve: Resolve = resolve,
    ) -> None:
        """``dial(address, host)`` makes a link; ``host`` is the name that resolved to the address, if any.

        ``interval``: seconds between two look-ups of each name.
        """
        targets = frozenset(addresses)
        self._names = frozenset(target for target in targets if is_dns_name(target))
        self._found: dict[str, frozenset[str]] = {name: frozenset() for name in self._names}
        """The last answer of DNS, keyed by name."""
        self._given = targets - self._names
        self._dial = dial
        self._interval = interval
        self._resolve = resolve
        self._dialled: dict[str, tuple[Link, asyncio.Task[None]]] = {}
        self._left_out = 0

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses dialled, and the names that have none."""
        return frozenset(self._dialled).union(name for name, found in self._found.items() if not found)

    async def run(self) -> None:
        """Keep the links until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._reconcile(tasks)
            for name in self._names:
                tasks.create_task(self._follow(name, tasks))

    async def _follow(self, name: str, tasks: asyncio.TaskGroup) -> None:
        host, port = host_and_port(name)
        logged = ""
        while True:
            problem = ""
            try:
                found = await self._resolve(host, port)
            except OSError as error:  # the last answer stays in use
                problem = error.strerror or str(error)
            else:
                if found != self._found[name]:
                    log.info("addresses of a name", name=name, addresses=sorted(found))
                elif not found:
                    problem = "it has no address"
                self._found[name] = found
            if problem and problem != logged:
                log.info("name not resolved", name=name, reason=problem)
            logged = problem
            # Reconcile each time, not only after a change: a kept link may have ended.
            self._reconcile(tasks)
            await asyncio.sleep(self._interval if self._found[name] else min(self._interval, _UNRESOLVED_INTERVAL))

    def _reconcile(self, tasks: asyncio.TaskGroup) -> None:
        """Dial new addresses; drop those that are gone, unless their link is established."""
        wanted = self._given.union(*self._found.values())
        for address in self._dialled.keys() - wanted:
            link, running = self._dialled[address]
            if not link.up:
                del self._dialled[address]
                running.cancel()
        for address in sorted(wanted - self._dialled.keys())[: MAX_LINKS - len(self._dialled)]:
            link = self._dial(address, self._host_of(address))
            self._dialled[address] = link, tasks.create_task(link.run())
        left_out = len(wanted - self._dialled.keys())
        if left_out > self._left_out:
            log.warning("too many addresses", left_out=left_out, dialled=MAX_LINKS)
        self._left_out = left_out

    def _host_of(self, address: str) -> str | None:
        """The name that resolved to ``address``, the first in order if several did; None if the address was given."""
        names = sorted(name for name, found in self._found.items() if address in found)
        return host_and_port(names[0])[0] if names and address not in self._given else None


class PeerDedup:
    """Prevents two links of one process to the same peer, when two addresses lead to it."""

    def __init__(self) -> None:
        self._addresses: dict[PeerId, str] = {}
        self._warned: dict[PeerId, set[str]] = {}

    @contextlib.contextmanager
    def claim(self, peer: PeerId, address: str) -> Iterator[None]:
        """Reserve a peer while a link to it is attempted and established.

        Raises ``LinkRefused`` if a link through another address has reserved it.
        """
        if self.has_another(peer, address):
            raise LinkRefused(f"it is {peer.name}, already linked through {self._addresses[peer]}")
        self._addresses[peer] = address
        try:
            yield
        finally:
            del self._addresses[peer]
            self._warned.pop(peer, None)

    @property
    def duplicates(self) -> frozenset[str]:
        """Addresses whose peers are linked through another address."""
        return frozenset[str]().union(*self._warned.values())

    def has_another(self, peer: PeerId, address: str) -> bool:
        """Whether a link through another address has reserved ``peer``; warns once per reservation and address."""
        used = self._addresses.get(peer, address)
        if used != address and address not in self._warned.setdefault(peer, set()):
            self._warned[peer].add(address)
            log.warning("two addresses of one peer", peer=peer.name, address=address, used=used)
        return used != address
