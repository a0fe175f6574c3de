"""The numbers of the live page (``page.html``): the present state, and rates over the last minutes.

A request with ``n=2`` is one request and two choices. The processor's numbers count requests; an engine's come from its
``Load``, which counts running choices and waiting requests. ``ringline status`` shows the same numbers.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from services.common.telemetry.drafts import acceptance
from services.processor.client_stream import ClientStream
from services.processor.gateways import Gateway, Gateways
from services.processor.linked_peers import LinkedDetokenizer, LinkedEngine, LinkedPeer, LinkedPeers
from services.processor.metrics import ProcessorMetrics, ProcessorReading
from services.ring.routing_logic import Routes

INTERVAL = 1.0
"""Seconds between samples."""
HISTORY = 120
"""Samples that the page plots."""
RATE_SAMPLES = 5
"""Intervals per rate; several, because peers report unevenly, about every half second."""
LATENCY_SAMPLES = 60
MAX_OTHERS = 16
"""Maximum names of other processes (attached to engines) on the page."""


class _Rate:
    """The rate of a counter."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES + 1)

    def add(self, now: float, count: int) -> float:
        """Add a reading; returns the recent growth per second. A counter that fell was reset, which resets the rate."""
        if self._points and count < self._points[-1][1]:
            self._points.clear()
        self._points.append((now, count))
        (then, before), elapsed = self._points[0], now - self._points[0][0]
        return (count - before) / elapsed if elapsed > 0 and then < now else 0.0


class LivePageSnapshot:
    """Samples every second, and serves the latest sample as JSON."""

    def __init__(
        self,
        name: str,
        peers: LinkedPeers,
        routes: Routes,
        metrics: ProcessorMetrics,
        gateways: Gateways,
        streams: Collection[ClientStream],
    ) -> None:
        """``streams``: those that clients have open now."""
        self._name = name
        self._peers = peers
        self._routes = routes
        self._metrics = metrics
        self._gateways = gateways
        self._streams = streams
        self._started = time.time()
        self._next = 0.0
        self._delivered, self._ended = _Rate(), _Rate()
        self._computed: dict[str, _Rate] = {}
        self._by_gateway: dict[str, _Rate] = {}
        self._tokens: deque[float] = deque(maxlen=HISTORY)
        self._live: deque[int] = deque(maxlen=HISTORY)
        self._first_tokens: deque[tuple[int, ...]] = deque(maxlen=LATENCY_SAMPLES + 1)
        self._latest: Mapping[str, Any] = {}

    def tick(self, now: float, reading: ProcessorReading, serving: bool) -> None:
        """Take a sample if one is due. Call a few times a second."""
        if now >= self._next:
            self._next = now + INTERVAL
            self._latest = self._sample(now, reading, serving)

    def json(self) -> bytes:
        """The latest sample; called from another thread."""
        return json.dumps({**self._latest, "now": time.time()}, separators=(",", ":")).encode()

    def _sample(self, now: float, reading: ProcessorReading, serving: bool) -> Mapping[str, Any]:
        metrics = self._metrics
        rate = self._delivered.add(now, metrics.generation_tokens)
        self._tokens.append(round(rate, 1))
        self._live.append(reading.live_requests)
        times = metrics.first_token_times
        self._first_tokens.append(times.counts)
        lately = [now - then for now, then in zip(self._first_tokens[-1], self._first_tokens[0], strict=True)]
        missing = self._peers.missing()
        self._computed = {node.peer.name: self._computed.get(node.peer.name) or _Rate() for node in self._peers.all()}
        return {
            "name": self._name,
            "model": metrics.model_name,
            "started": self._started,
            "serving": serving,
            "live_requests": reading.live_requests,
            "waiting_requests": reading.waiting_requests,
            "tokens_per_second": rate,
            "requests_per_second": self._ended.add(now, metrics.ended_requests),
            "first_token": {"p50": quantile(times.bounds, lately, 0.5), "p95": quantile(times.bounds, lately, 0.95)},
            "failovers": dict(reading.failovers),
            "history": {
                "interval": INTERVAL,
                "tokens_per_second": list(self._tokens),
                "live_requests": list(self._live),
            },
            "gateways": self._gateway_views(now),
            **self._by_service(now),
            "missing": {"engines": list(missing.engines), "detokenizers": list(missing.detokenizers)},
            "others": self._others(),
            "events": [
                {"at": e.at, "service": e.service, "name": e.name, "what": e.what, "requests": e.requests}
                for e in self._peers.events
            ],
        }

    def _by_service(self, now: float) -> dict[str, list[Mapping[str, Any]]]:
        """Every linked peer by service, ordered by name."""
        requests, joined = self._routes.requests(), self._routes.joined()
        views: dict[str, list[Mapping[str, Any]]] = {"engines": [], "detokenizers": []}
        for node in sorted(self._peers.all(), key=lambda node: node.peer.name):
            name = node.peer.name
            tokens, load = _reported(node)
            views[f"{node.service}s"].append(
                {
                    "name": name,
                    "state": "silent" if node.suspected else "draining" if node.draining else "serving",
                    "tokens_per_second": self._computed[name].add(now, tokens),
                    "own": requests[node.peer],
                    "linked": joined.get(name, ()) if node.service == "engine" else (),
                    **load,
                }
            )
        return views

    def _gateway_views(self, now: float) -> list[Mapping[str, Any]]:
        """Every gateway, ordered by name."""
        live = Counter[Gateway | None]()
        for stream in self._streams:
            live[stream.gateway] += stream.num_live
        known = self._gateways.all()
        self._by_gateway = {each.name: self._by_gateway.get(each.name) or _Rate() for each in known}
        return [
            {
                "name": each.name,
                "live_requests": live[each],
                "tokens_per_second": self._by_gateway[each.name].add(now, each.delivered_tokens),
            }
            for each in known
        ]

    def _others(self) -> list[str]:
        """Other processes attached to the engines: mostly other processors."""
        known = {self._name, *(peer.name for peer in self._peers.detokenizers)}
        return sorted({peer.name for peer in self._routes.attached()} - known)[:MAX_OTHERS]


def _reported(node: LinkedPeer) -> tuple[int, Mapping[str, Any]]:
    """Tokens that a peer computed or decoded since it started, and the rest of its load.

    An engine's numbers are named as in ``ringline.engine.v1.Load``.
    """
    if isinstance(node, LinkedDetokenizer):
        return node.load.decoded_tokens, {"requests": node.load.live_requests}
    assert isinstance(node, LinkedEngine)
    load = node.load
    counts = load.drafts, load.draft_tokens, load.accepted_draft_tokens
    accepted = acceptance(*counts, load.accepted_by_position)
    return load.generated_tokens, {
        "running_choices": load.running_choices,
        "waiting_requests": load.waiting_requests,
        "kv_usage": round(load.kv_usage, 4),
        "kv_blocks": load.blocks_total,
        "states": load.states_total,
        "preemptions": load.preemptions,
        "prefix_hits": load.prefix_hits / load.prefix_queries if load.prefix_queries else 0.0,
        "acceptance": None if accepted is None else asdict(accepted),
    }


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """A histogram's quantile, as Prometheus estimates it: linear within a bucket. None for an empty one."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    for index, reached in enumerate(accumulate(counts)):
        if reached >= wanted:
            if index == len(bounds):
                return bounds[-1]
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * (wanted - (reached - counts[index])) / counts[index]
    raise AssertionError("all are reached")
