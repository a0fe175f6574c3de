"""Keeps places free among a server's connections, so that a client that needs one gets it.

gRPC counts connections but not whose they are: one client that opens them and says nothing could take all, and keep
everybody else out. So while few places are left, the clients that have most lose connections on which nothing is under
way, the quietest first: they hardly notice, and dial again. Web servers do the same with connections that are kept
alive.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import structlog

from services.runtime.connections import Connection, accepted, close
from services.runtime.rate_limited_log import RateLimitedLog

log = structlog.get_logger(__name__)

_INTERVAL = 0.1
"""Seconds between looks; they are cheap while there is room."""
_REST = 4
"""Times as long as a look took is it rested afterwards, at least."""
_SHORT, _ENOUGH = 4, 2
"""Of all places, the part that is kept free, and the part that is free afterwards."""
_OTHER_DESCRIPTORS = 256
"""Of the process, for files, links and answers to scrapes."""


def most_connections(wanted: int) -> int:
    """As many connections as the system lets this process have, at most ``wanted``.

    Raises the process's limit of open files if that is necessary and allowed.
    """
    soft, hard = (
        limit if limit != resource.RLIM_INFINITY else sys.maxsize
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    needed = wanted + _OTHER_DESCRIPTORS
    if soft >= needed:
        return wanted
    soft = min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if soft == needed:
        return wanted
    allowed = max(1, soft - _OTHER_DESCRIPTORS)
    log.warning("fewer connections than --max-connections: the system allows too few files", connections=allowed)
    return allowed


class ConnectionGuard:
    """Watches the connections to one port of this process, from ``start`` to ``stop``."""

    def __init__(self, port: int, max_connections: int, is_busy: Callable[[str, int], bool]) -> None:
        """``is_busy``: whether a connection, by address and port of its other end, has calls. Any thread may ask."""
        self._port = port
        self._most = max_connections - max_connections // _SHORT
        self._enough = max_connections - max_connections // _ENOUGH
        self._is_busy = is_busy
        self._closed = RateLimitedLog(log, "connections are short: closed some without calls")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="connection guard", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _watch(self) -> None:
        took = 0.0
        while not self._stop.wait(max(_INTERVAL, _REST * took)):
            began = time.thread_time()  # not what passes while the event loop computes
            try:
                if len(os.listdir("/proc/self/fd")) > self._most:  # noqa: PTH208 - a Path of each would cost more
                    self.look()
            except OSError:  # when no descriptor is left, the next look may find one
                pass
            except Exception:
                log.exception("the connection guard failed")
            took = time.thread_time() - began

    def look(self) -> None:
        """Do what is necessary now."""
        connections = list(accepted(self._port))
        if len(connections) <= self._most:
            return
        for connection in self._superfluous(connections):
            close(connection)
            self._closed.tell(client=connection.peer[0])

    def _superfluous(self, connections: list[Connection]) -> list[Connection]:
        """Those to be closed: one by one, the quietest without calls of whoever has most connections yet.

        (Over one that has just been made, or on which a call is on its way, something came just now.)
        """
        counts = Counter(connection.peer[0] for connection in connections)
        idle: dict[str, list[Connection]] = defaultdict(list)
        for connection in sorted(connections, key=lambda one: one.quiet):
            if not self._is_busy(*connection.peer):
                idle[connection.peer[0]].append(connection)
        heaviest = [(-counts[host], -ones[-1].quiet, host) for host, ones in idle.items()]
        heapify(heaviest)
        chosen: list[Connection] = []
        while heaviest and len(connections) - len(chosen) > self._enough:
            negated, _, host = heappop(heaviest)
            chosen.append(idle[host].pop())
            if idle[host]:
                heappush(heaviest, (negated + 1, -idle[host][-1].quiet, host))
        return chosen
