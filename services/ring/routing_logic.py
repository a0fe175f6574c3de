"""The routing rule: a request goes to a joined (engine, detokenizer) pair that takes work, by prefix, then by load.

A pair is joined when the engine reports this incarnation of the detokenizer as attached, the detokenizer has
acknowledged this processor's subscription, and has not reported that it does not hear the engine. An engine that pools
its inputs sends their results to the processor itself, and takes work without a detokenizer.

A request goes to engines of its generation only. A new request may belong to any generation: it gets the newest with
room, or the newest if none has room, so that the first engine of a new model does not get the work of all others.

A request with an adapter goes to engines that know it only; one that has its weights in memory comes before the others,
unless it is busier than they are by more than reading the weights is worth.

No request goes where it would wait while another engine has room. A processor with a zone takes the engines of other
zones only while all of its own are full, and their detokenizers only while its own zone has none.

A request goes to an engine that has its prompt's prefix cached, unless that engine is busier than the others by more
than the prefix is worth. Otherwise it goes to the less loaded of two engines. The prompt's hash selects the two, so
that processors which know nothing of each other send equal prompts to the same engines; without a prefix, they are
random. (Two, because the least loaded of all would be the same for every processor until its next report: Mitzenmacher,
IEEE TPDS 12, 2001.)
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from services.ring.adapters import Adapter, AdapterBook
from services.ring.identity import POOLING, PeerId
from services.ring.model_generations import Generation
from services.ring.prefixes import Prefixes, PrefixMap, by_rendezvous

TOKENS_PER_REQUEST = 64
"""Cached prompt tokens for which an engine may be one request busier than the others' average load."""
ADAPTER_TOKENS = 8 * TOKENS_PER_REQUEST
"""Cached prompt tokens that are worth as much as an adapter's weights in memory."""
MAX_EXTRA_REQUESTS, MAX_EXTRA_SHARE = 8, 0.25
"""Limit on those extra requests: a number, or a share of that average where that is more."""
FULL_KV_USAGE = 0.95
"""An engine counts as full if requests wait there and at least this share of its KV blocks is in use."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request needs of its peers beyond their generation: capabilities, and an adapter that the engine knows."""

    engine: frozenset[str] = frozenset()
    detokenizer: frozenset[str] = frozenset()
    adapter: Adapter | None = None


_NO_NEEDS = Needs()


@dataclass(frozen=True, slots=True)
class Route:
    """The engine that computes a request, and the detokenizer that decodes it."""

    engine: PeerId
    detokenizer: PeerId | None
    """None: there is nothing to decode, and the engine sends the results here."""

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return (self.engine,) if self.detokenizer is None else (self.engine, self.detokenizer)

    @property
    def deliver_to(self) -> str:
        """Name of the peer that gets the engine's outputs; empty: the submitter."""
        return "" if self.detokenizer is None else self.detokenizer.name


class Decision(enum.Enum):
    """Why an engine was chosen."""

    PREFIX = "prefix"
    """It has most of the prompt cached."""
    OVERLOAD = "overload"
    """The engine that has most of the prompt is too busy; the less loaded of two was chosen."""
    LOAD = "load"
    """No engine has most of the prompt; the less loaded of two was chosen."""


@dataclass(slots=True)
class _Node:
    peer: PeerId
    capabilities: frozenset[str]
    own: int = 0
    """This processor's load there: choices at an engine, requests at a detokenizer."""
    others: int = 0
    """Others' load there at its last report."""
    generation: Generation | None = None
    """The generation that an engine serves; None for a detokenizer."""
    capacity: int | None = None
    """The most choices that an engine computes at the same time; None if not known."""
    zone: str | None = None
    pressed: bool = False
    """Whether requests wait for KV blocks."""
    taking: bool = True
    attached: frozenset[PeerId] = field(default_factory=frozenset)
    """For an engine: the peers attached to it."""
    hears: frozenset[PeerId] | None = None
    """For a detokenizer: the engines whose frames it receives; None until it has reported them."""

    @property
    def pools(self) -> bool:
        """Whether an engine has nothing to decode."""
        return POOLING in self.capabilities

    @property
    def load(self) -> int:
        return self.own + self.others

    @property
    def full(self) -> bool:
        """Whether one more request would wait."""
        return self.pressed or (self.capacity is not None and self.load >= self.capacity)


class Routes:
    """The routing state of all peers, and the routes of this processor's requests."""

    def __init__(self, rng: random.Random, zone: str | None = None) -> None:
        """``zone``: this processor's; None: peers of all zones are equal."""
        self._rng = rng
        self._zone = zone
        self._engines: dict[str, _Node] = {}
        self._detokenizers: dict[str, _Node] = {}
        self._held: dict[str, tuple[Route, int]] = {}
        """Route and number of choices of each request, keyed by request id."""
        self.revision = 0
        """Grows when a pair may have begun or ceased to take work; until then an unrouted request finds no route."""
        self.prefixes = PrefixMap()
        self.adapters = AdapterBook()
        self.decisions: Counter[Decision] = Counter(dict.fromkeys(Decision, 0))
        """Number of decisions of each kind."""

    def engine_up(
        self,
        peer: PeerId,
        generation: Generation,
        capacity: int | None = None,
        capabilities: Iterable[str] = (),
        zone: str | None = None,
    ) -> None:
        """An engine welcomed this processor. ``capacity``: choices that it computes at a time, if known."""
        own = sum(choices for route, choices in self._held.values() if route.engine == peer)
        self._engines[peer.name] = _Node(
            peer, frozenset(capabilities), own, generation=generation, capacity=capacity, zone=zone
        )
        self.revision += 1

    def engine_down(self, peer: PeerId) -> None:
        if (node := self._engines.get(peer.name)) is not None and node.peer == peer:
            del self._engines[peer.name]
            self.revision += 1

    def adapters_changed(self) -> None:
        """Engines told of adapters: requests may find a route, or one that is better."""
        self.revision += 1

    def engine_peers(self, engine: PeerId, attached: Iterable[PeerId]) -> None:
        if (node := self._engines.get(engine.name)) is not None and node.peer == engine:
            node.attached = frozenset(attached)
            self.revision += 1

    def detokenizer_up(self, peer: PeerId, capabilities: Iterable[str] = (), zone: str | None = None) -> None:
        own = sum(route.detokenizer == peer for route, _ in self._held.values())
        self._detokenizers[peer.name] = _Node(peer, frozenset(capabilities), own, zone=zone)
        self.revision += 1

    def detokenizer_down(self, peer: PeerId) -> None:
        if (node := self._detokenizers.get(peer.name)) is not None and node.peer == peer:
            del self._detokenizers[peer.name]
            self.revision += 1

    def engine_load(self, peer: PeerId, running: int, waiting: int, kv_usage: float) -> None:
        """An engine reported its running choices, waiting requests, and the share of its KV blocks in use."""
        if (node := self._engines.get(peer.name)) is not None and node.peer == peer:
            node.others = max(0, running + waiting - node.own)
            node.pressed = waiting > 0 and kv_usage >= FULL_KV_USAGE

    def detokenizer_load(self, peer: PeerId, requests: int) -> None:
        if (node := self._detokenizers.get(peer.name)) is not None and node.peer == peer:
            node.others = max(0, requests - node.own)

    def detokenizer_hears(self, peer: PeerId, engines: Iterable[PeerId]) -> None:
        """A detokenizer reported the engines that it is attached to and hears."""
        if (node := self._detokenizers.get(peer.name)) is not None and node.peer == peer:
            node.hears = frozenset(engines)
            self.revision += 1

    def partitioned(self, peer: PeerId) -> frozenset[Route]:
        """The pairs of a peer whose detokenizer reports that it does not hear the engine.

        Their requests make no progress.
        """
        engines = [node for node in self._engines.values() if node.peer == peer]
        detokenizers = [node for node in self._detokenizers.values() if node.peer == peer]
        return frozenset(
            Route(engine.peer, detokenizer.peer)
            for engine in engines or (self._engines.values() if detokenizers else ())
            for detokenizer in detokenizers or self._detokenizers.values()
            if not (engine.pools or _hears(detokenizer, engine))
        )

    def set_taking_work(self, peer: PeerId, taking: bool) -> None:
        """Set whether a peer gets new work: not while it is draining or suspected."""
        for nodes in (self._engines, self._detokenizers):
            if (node := nodes.get(peer.name)) is not None and node.peer == peer:
                node.taking = taking
                self.revision += 1

    def any_joined(self, needs: Needs = _NO_NEEDS) -> bool:
        """Whether any pair takes requests with these needs."""
        return bool(self._engines_taking(needs))

    def generations(self) -> list[Generation]:
        """The generations of engines that take work; that of the engine started last comes first."""
        engines = sorted(self._engines_taking(), key=lambda node: -node.peer.incarnation)
        return list(dict.fromkeys(node.generation for node in engines if node.generation is not None))

    def preferred(self) -> list[Generation]:
        """The ``generations`` in the order for new requests: those with room for one more request come first."""
        roomy = {node.generation for node in self._engines_taking() if not node.full}
        return sorted(self.generations(), key=lambda generation: generation not in roomy)

    def capacity(self) -> int | None:
        """Sum of the capacities of the engines taking work; None without engines, or if one did not report it."""
        known = [node.capacity for node in self._engines_taking()]
        return sum(filter(None, known)) if known and None not in known else None

    def loads(self) -> dict[str, int]:
        """Each engine's load in choices, by name."""
        return {name: node.load for name, node in self._engines.items()}

    def requests(self) -> Counter[PeerId]:
        """The number of this processor's requests at each peer."""
        return Counter(peer for route, _ in self._held.values() for peer in route.peers)

    def joined(self) -> dict[str, tuple[str, ...]]:
        """Names of the joined detokenizers that take work, keyed by engine name."""
        return {name: tuple(one.peer.name for one in self._joined(node)) for name, node in self._engines.items()}

    def attached(self) -> frozenset[PeerId]:
        """All peers attached to engines."""
        return frozenset().union(*(node.attached for node in self._engines.values()))

    def choose(
        self,
        request_id: str,
        generation: Generation,
        prefixes: Prefixes,
        *,
        choices: int = 1,
        engine: PeerId | None = None,
        needs: Needs = _NO_NEEDS,
        begins: bool = False,
    ) -> Route | None:
        """A joined pair of a generation that takes work, or None; the request counts as its load until ``release``.

        ``engine``: stay on the engine that has the request, even if it takes no new work. Both peers meet ``needs``.
        ``begins``: the request is new, and its adapter's name must not be unloaded at the engine. An engine that pools
        is a route without a detokenizer.
        """
        if engine is None:
            chosen = self._choose_engine(generation, prefixes, needs, begins)
        else:
            node = self._engines.get(engine.name)
            chosen = node if node is not None and node.peer == engine and self._is_joined(node, needs) else None
        if chosen is None:
            return None
        detokenizer = None if chosen.pools else self._choose_detokenizer(chosen, needs)
        self.release(request_id)
        chosen.own += choices
        if detokenizer is not None:
            detokenizer.own += 1
        route = Route(chosen.peer, None if detokenizer is None else detokenizer.peer)
        self._held[request_id] = route, choices
        return route

    def release(self, request_id: str, computed: Prefixes | None = None) -> None:
        """The request has left its route; ``computed``: the prefixes that the engine now has cached. Idempotent."""
        if (held := self._held.pop(request_id, None)) is None:
            return
        route, choices = held
        if computed is not None:
            self.prefixes.add(computed, route.engine)
        if (node := self._engines.get(route.engine.name)) is not None and node.peer == route.engine:
            node.own -= choices
        node = None if route.detokenizer is None else self._detokenizers.get(route.detokenizer.name)
        if node is not None and node.peer == route.detokenizer:
            node.own -= 1

    def _choose_detokenizer(self, engine: _Node, needs: Needs) -> _Node:
        joined = list(self._joined(engine, needs))
        return self._less_loaded(self._near(joined) or joined)

    def _choose_engine(self, generation: Generation, prefixes: Prefixes, needs: Needs, begins: bool) -> _Node | None:
        taking = [node for node in self._engines_taking(needs) if node.generation == generation]
        if begins and (adapter := needs.adapter) is not None:
            taking = [node for node in taking if self.adapters.begins(node.peer, adapter)]
        near = self._near(taking)
        if any(not node.full for node in near):
            taking = near
        held = self._holding(taking, needs)
        nodes = {node.peer: node for node in held or taking}
        if not nodes:
            return None
        match = self.prefixes.find(prefixes, nodes)
        chosen, decision = None, Decision.LOAD
        if match.worth_following:
            chosen, decision = min((nodes[holder] for holder in match.holders), key=_busy), Decision.PREFIX
            if self._overloaded(chosen, match.tokens, nodes.values()):
                chosen, decision = None, Decision.OVERLOAD
        if chosen is None:
            free = [peer for peer, node in nodes.items() if not node.full] or list(nodes)
            branch = match.branch if needs.adapter is None or held else needs.adapter.key
            pair = by_rendezvous(branch, free)[:2] if branch is not None else free
            chosen = self._less_loaded([nodes[peer] for peer in pair])
        self.decisions[decision] += 1
        self.prefixes.add(prefixes, chosen.peer)
        return chosen

    def _holding(self, nodes: list[_Node], needs: Needs) -> list[_Node]:
        """Those that have the request's adapter in memory and are not too busy."""
        adapter = needs.adapter
        if adapter is None:
            return []
        holding = [node for node in nodes if self.adapters.holds(node.peer, adapter)]
        return [node for node in holding if not self._overloaded(node, ADAPTER_TOKENS, nodes)]

    def _near(self, nodes: list[_Node]) -> list[_Node]:
        """Those of this processor's zone."""
        return nodes if self._zone is None else [node for node in nodes if node.zone == self._zone]

    def _overloaded(self, node: _Node, tokens: int, nodes: Iterable[_Node]) -> bool:
        """Whether an engine is busier than the others by more than ``tokens`` cached tokens justify."""
        others = [other for other in nodes if other is not node]
        if not others:
            return False
        if node.full and not all(other.full for other in others):
            return True
        mean = sum(other.load for other in others) / len(others)
        return node.load - mean > min(tokens / TOKENS_PER_REQUEST, max(MAX_EXTRA_REQUESTS, MAX_EXTRA_SHARE * mean))

    def _less_loaded(self, nodes: list[_Node]) -> _Node:
        """The less loaded of two random nodes."""
        return min(self._rng.sample(nodes, min(2, len(nodes))), key=_busy)

    def _engines_taking(self, needs: Needs = _NO_NEEDS) -> list[_Node]:
        return [
            node
            for node in self._engines.values()
            if node.taking
            and needs.engine <= node.capabilities
            and (needs.adapter is None or self.adapters.knows(node.peer, needs.adapter))
            and self._is_joined(node, needs)
        ]

    def _is_joined(self, engine: _Node, needs: Needs) -> bool:
        """Whether what an engine computes reaches the client."""
        return engine.pools or any(self._joined(engine, needs))

    def _joined(self, engine: _Node, needs: Needs = _NO_NEEDS) -> Iterator[_Node]:
        """The detokenizers joined with an engine that take work and meet ``needs``."""
        return (
            node
            for node in self._detokenizers.values()
            if node.taking
            and node.peer in engine.attached
            and _hears(node, engine)
            and needs.detokenizer <= node.capabilities
        )


def _hears(detokenizer: _Node, engine: _Node) -> bool:
    return detokenizer.hears is None or engine.peer in detokenizer.hears


def _busy(node: _Node) -> tuple[bool, int]:
    return node.full, node.load


class RouteIndex(Generic[T]):
    """Items by key, each on one route; finds the items of a route, of an engine or of a detokenizer."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._items: dict[PeerId, dict[PeerId | None, dict[str, T]]] = {}
        """Items keyed by engine, then detokenizer, then key; empty dicts are removed."""

    def put(self, key: str, item: T, route: Route) -> None:
        """Put an item on a route; it leaves its earlier route."""
        self.discard(key)
        self._routes[key] = route
        self._items.setdefault(route.engine, {}).setdefault(route.detokenizer, {})[key] = item

    def discard(self, key: str) -> None:
        if (route := self._routes.pop(key, None)) is None:
            return
        at_engine = self._items[route.engine]
        on_route = at_engine[route.detokenizer]
        del on_route[key]
        if not on_route:
            del at_engine[route.detokenizer]
        if not at_engine:
            del self._items[route.engine]

    def at_engine(self, engine: PeerId) -> list[T]:
        return [item for on_route in self._items.get(engine, {}).values() for item in on_route.values()]

    def at_detokenizer(self, detokenizer: PeerId) -> list[T]:
        return [item for at_engine in self._items.values() for item in at_engine.get(detokenizer, {}).values()]

    def on(self, route: Route) -> list[T]:
        """The items on exactly this route."""
        return list(self._items.get(route.engine, {}).get(route.detokenizer, {}).values())
