"""Which pairs carry requests, against a model that knows every peer's whole state."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.ring.adapters import Adapter, AdapterState
from services.ring.identity import POOLING, PeerId
from services.ring.model_generations import Generation
from services.ring.prefixes import Prefixes, prefixes_of
from services.ring.routing_logic import (
    FULL_KV_USAGE,
    MAX_EXTRA_REQUESTS,
    MAX_EXTRA_SHARE,
    TOKENS_PER_REQUEST,
    Decision,
    Needs,
    Route,
    RouteIndex,
    Routes,
)

ENGINES, DETOKENIZERS = ("e0", "e1", "e2"), ("d0", "d1", "d2")
OLD, NEW = Generation("m", "old"), Generation("m", "new")
BLOCK = 16
engine_names, detokenizer_names = st.sampled_from(ENGINES), st.sampled_from(DETOKENIZERS)
lives = st.integers(1, 2)
engines, detokenizers = (st.builds(PeerId, names, st.just(1)) for names in (engine_names, detokenizer_names))
requests = st.integers(0, 30)
few = st.integers(0, 5)
generations = st.sampled_from([OLD, NEW])


def prompt(family: int, tail: int = 0) -> Prefixes:
    """A prompt of a family, whose last fifth is its own."""
    return prefixes_of([family] * 32 * BLOCK + [1000 + tail] * 8 * BLOCK, b"", BLOCK)


@dataclass
class Known:
    """All that was last said of a peer's present life."""

    peer: PeerId
    generation: Generation | None = None
    taking: bool = True
    others: int = 0
    pressed: bool = False
    capacity: int | None = None
    attached: set[PeerId] = field(default_factory=set)
    hears: set[PeerId] | None = None


class RoutesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.routes = Routes(random.Random(0))
        self.engines: dict[str, Known] = {}
        self.detokenizers: dict[str, Known] = {}
        self.held: dict[str, tuple[Route, int]] = {}

    def known(self, peer: PeerId) -> Known | None:
        known = self.engines.get(peer.name) or self.detokenizers.get(peer.name)
        return known if known is not None and known.peer == peer else None

    def own(self, peer: PeerId) -> int:
        """What this processor has at a peer."""
        held = self.held.values()
        return sum(
            choices if peer == route.engine else peer == route.detokenizer
            for route, choices in held
            if peer in (route.engine, route.detokenizer)
        )

    def load(self, known: Known) -> int:
        return known.others + self.own(known.peer)

    def full(self, known: Known) -> bool:
        return known.pressed or (known.capacity is not None and self.load(known) >= known.capacity)

    @rule(name=engine_names, life=lives, generation=generations, capacity=st.none() | st.integers(1, 20))
    def engine_up(self, name: str, life: int, generation: Generation, capacity: int | None) -> None:
        self.routes.engine_up(PeerId(name, life), generation, capacity)
        self.engines[name] = Known(PeerId(name, life), generation, capacity=capacity)

    @rule(name=detokenizer_names, life=lives)
    def detokenizer_up(self, name: str, life: int) -> None:
        self.routes.detokenizer_up(PeerId(name, life))
        self.detokenizers[name] = Known(PeerId(name, life))

    @rule(name=engine_names, life=lives)
    def engine_down(self, name: str, life: int) -> None:
        self.routes.engine_down(PeerId(name, life))
        if self.known(PeerId(name, life)):
            del self.engines[name]

    @rule(name=detokenizer_names, life=lives)
    def detokenizer_down(self, name: str, life: int) -> None:
        self.routes.detokenizer_down(PeerId(name, life))
        if self.known(PeerId(name, life)):
            del self.detokenizers[name]

    @rule()
    def everybody_comes(self) -> None:
        for name in DETOKENIZERS:
            self.detokenizer_up(name, 1)
        for name in ENGINES:
            self.engine_up(name, 1, OLD, None)
            self.engine_peers(name, 1, {(name, 1) for name in DETOKENIZERS})

    @rule(name=engine_names, life=lives, attached=st.sets(st.tuples(detokenizer_names, lives)))
    def engine_peers(self, name: str, life: int, attached: set[tuple[str, int]]) -> None:
        peers = {PeerId(*one) for one in attached}
        self.routes.engine_peers(PeerId(name, life), peers)
        if known := self.known(PeerId(name, life)):
            known.attached = peers

    @rule(name=engine_names | detokenizer_names, life=lives, taking=st.booleans())
    def set_taking_work(self, name: str, life: int, taking: bool) -> None:
        self.routes.set_taking_work(PeerId(name, life), taking)
        if known := self.known(PeerId(name, life)):
            known.taking = taking

    @rule(name=engine_names, life=lives, running=requests, waiting=st.integers(0, 3), usage=st.sampled_from([0.5, 1.0]))
    def engine_load(self, name: str, life: int, running: int, waiting: int, usage: float) -> None:
        peer = PeerId(name, life)
        self.routes.engine_load(peer, running, waiting, usage)
        if known := self.known(peer):
            known.others = max(0, running + waiting - self.own(peer))
            known.pressed = waiting > 0 and usage >= FULL_KV_USAGE

    @rule(name=detokenizer_names, life=lives, load=requests)
    def detokenizer_load(self, name: str, life: int, load: int) -> None:
        peer = PeerId(name, life)
        self.routes.detokenizer_load(peer, load)
        if known := self.known(peer):
            known.others = max(0, load - self.own(peer))

    @rule(name=detokenizer_names, life=lives, deaf_to=st.sets(engine_names))
    def detokenizer_hears(self, name: str, life: int, deaf_to: set[str]) -> None:
        peers = {PeerId(engine, 1) for engine in ENGINES if engine not in deaf_to}
        self.routes.detokenizer_hears(PeerId(name, life), peers)
        if known := self.known(PeerId(name, life)):
            known.hears = peers

    def joined(self, engine: Known) -> list[Known]:
        return [
            known
            for known in self.detokenizers.values()
            if known.taking and known.peer in engine.attached and (known.hears is None or engine.peer in known.hears)
        ]

    @rule(
        request=few,
        generation=generations,
        family=st.integers(0, 4),
        choices=st.integers(1, 3),
        only=st.none() | st.none() | st.tuples(engine_names, lives),
    )
    def choose(
        self, request: int, generation: Generation, family: int, choices: int, only: tuple[str, int] | None
    ) -> None:
        engine = None if only is None else PeerId(*only)
        takers = [known for known in self.takers() if known.generation == generation]
        before = Counter(self.routes.decisions)
        loads = {known.peer: (self.full(known), self.load(known)) for known in takers}
        prefixes = prompt(family, request)
        chosen = self.routes.choose(str(request), generation, prefixes, choices=choices, engine=engine)
        if engine is None:
            assert (chosen is None) == (not takers)
        else:
            known = self.known(engine)
            assert (chosen is None) == (known is None or not self.joined(known))
        if chosen is None:
            return
        known = self.known(chosen.engine)
        assert known is not None, "never a dead engine"
        detokenizers = self.joined(known)
        assert self.detokenizers[chosen.detokenizer.name] in detokenizers
        if len(detokenizers) > 1:
            busiest = max(detokenizers, key=self.load)
            alone = all(self.load(other) < self.load(busiest) for other in detokenizers if other is not busiest)
            assert not (alone and busiest.peer == chosen.detokenizer), "the less loaded of two is never the busiest"
        if engine is None:
            assert known.generation == generation, "never another generation's"
            (decision,) = (self.routes.decisions - before).elements()
            self.check_balance(chosen.engine, decision, loads)
        else:
            assert chosen.engine == engine
        self.held[str(request)] = chosen, choices

    def check_balance(self, chosen: PeerId, decision: Decision, loads: dict[PeerId, tuple[bool, int]]) -> None:
        """Whatever was done before, no engine gets work that is much busier than the others."""
        others = [load for peer, load in loads.items() if peer != chosen]
        if not others:
            return
        assert not loads[chosen][0] or all(full for full, _ in others), "nobody waits while there is room elsewhere"
        if decision is Decision.PREFIX:
            load = loads[chosen][1]
            mean = sum(load for _, load in others) / len(others)
            assert load <= mean + max(MAX_EXTRA_REQUESTS, MAX_EXTRA_SHARE * mean)
        else:
            assert loads[chosen] <= max(others), "the less loaded of two is never the busiest"

    def takers(self) -> list[Known]:
        return [known for known in self.engines.values() if known.taking and self.joined(known)]

    @invariant()
    def a_new_request_belongs_to_the_newest_with_room(self) -> None:
        newest: dict[Generation | None, int] = {}
        for known in self.takers():
            newest[known.generation] = max(newest.get(known.generation, 0), known.peer.incarnation)
        found = self.routes.generations()
        assert set(found) == set(newest)
        lives = [newest[generation] for generation in found]
        assert lives == sorted(lives, reverse=True)
        roomy = [generation for generation in found if self.room(generation)]
        assert self.routes.preferred() == roomy + [generation for generation in found if generation not in roomy]

    def room(self, generation: Generation) -> bool:
        return any(not self.full(known) for known in self.takers() if known.generation == generation)

    @rule(request=few)
    def release(self, request: int) -> None:
        self.routes.release(str(request))
        self.held.pop(str(request), None)

    @invariant()
    def it_is_ready_while_a_pair_takes_work(self) -> None:
        assert self.routes.any_joined() == bool(self.takers())

    @invariant()
    def pairs_are_parted_whose_detokenizer_says_so(self) -> None:
        partitioned = {
            Route(engine.peer, detokenizer.peer)
            for engine in self.engines.values()
            for detokenizer in self.detokenizers.values()
            if detokenizer.hears is not None and engine.peer not in detokenizer.hears
        }
        for known in (*self.engines.values(), *self.detokenizers.values(), Known(PeerId("gone", 1))):
            peer = known.peer
            assert self.routes.partitioned(peer) == {r for r in partitioned if peer in (r.engine, r.detokenizer)}

    @invariant()
    def loads_are_what_was_reported_and_what_is_held(self) -> None:
        assert self.routes.loads() == {name: self.load(known) for name, known in self.engines.items()}


RoutesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRoutes = RoutesMachine.TestCase


def make_routes(engines: int, seed: int = 0) -> Routes:
    """All of them joined with one detokenizer."""
    routes = Routes(random.Random(seed))
    routes.detokenizer_up(PeerId("d0", 1))
    for number in range(engines):
        routes.engine_up(PeerId(f"e{number}", 1), OLD)
        routes.engine_peers(PeerId(f"e{number}", 1), [PeerId("d0", 1)])
    return routes


def send(routes: Routes, request: int, prefixes: Prefixes) -> str:
    route = routes.choose(str(request), OLD, prefixes)
    assert route is not None
    return route.engine.name


def test_equal_engines_get_equal_shares() -> None:
    routes = make_routes(2)
    assert Counter(send(routes, number, Prefixes()) for number in range(12)) == {"e0": 6, "e1": 6}


def test_prompts_of_a_family_stay_together_and_families_spread() -> None:
    routes = make_routes(4)
    places = Counter(
        (family, send(routes, 100 * turn + family, prompt(family, turn))) for turn in range(5) for family in range(40)
    )
    # 200 requests under way: what an engine may be busier than the others does not scatter 40 families of 5.
    assert len(places) < 50
    assert min(Counter(engine for _, engine in places.elements()).values()) > 30
    assert routes.decisions[Decision.PREFIX] > 150


def test_a_hot_prefix_spreads_when_its_engine_is_busier_than_it_is_worth() -> None:
    routes = make_routes(4)
    places = Counter(send(routes, number, prompt(0, number)) for number in range(100))
    assert max(places.values()) - min(places.values()) <= MAX_EXTRA_REQUESTS + 1
    assert routes.decisions[Decision.OVERLOAD] > 0


def test_a_short_prefix_is_worth_little() -> None:
    """An engine is not made busier by more requests than the tokens that it saves make up for."""
    routes = make_routes(2)
    short = prefixes_of([1] * TOKENS_PER_REQUEST * 2, b"", BLOCK)
    for number in range(20):
        send(routes, number, short)
        assert abs(routes.loads()["e0"] - routes.loads()["e1"]) <= 3


def test_a_conversation_returns_to_the_engine_with_its_answer() -> None:
    routes = make_routes(4)
    question = [1] * 10 * BLOCK
    engine = send(routes, 0, prefixes_of(question, b"", BLOCK))
    answered = question + [2] * 20 * BLOCK
    routes.release("0", prefixes_of(answered, b"", BLOCK))
    for number in range(1, 5):
        assert send(routes, number, prefixes_of(answered + [3] * BLOCK, b"", BLOCK)) == engine
    assert routes.decisions[Decision.PREFIX] == 4


def test_independent_processors_agree() -> None:
    one, other = make_routes(6, seed=1), make_routes(6, seed=2)
    agree = 0
    for family in range(60):
        agree += send(one, family, prompt(family)) == send(other, family, prompt(family, tail=1))
        one.release(str(family))
        other.release(str(family))
    assert agree > 25, "by chance it would be 10; without load either of the same two may be taken"


def test_a_restarted_engine_has_no_prefixes() -> None:
    routes = make_routes(3)
    engine = send(routes, 0, prompt(0))
    routes.engine_down(PeerId(engine, 1))
    assert send(routes, 1, prompt(0)) != engine
    routes.engine_up(PeerId(engine, 2), OLD)
    routes.engine_peers(PeerId(engine, 2), [PeerId("d0", 1)])
    assert send(routes, 2, prompt(0)) != engine
    assert routes.decisions[Decision.PREFIX] == 1


def test_many_processors_do_not_herd_to_the_engine_that_reported_least() -> None:
    """Each sends one request between two reports; all know the same."""
    processors = [make_routes(10, seed) for seed in range(40)]
    for routes in processors:
        for number in range(10):
            routes.engine_load(PeerId(f"e{number}", 1), 1 + (number != 0), 0, 0.0)
    places = Counter(send(routes, 0, Prefixes()) for routes in processors)
    assert places["e0"] < 16
    assert len(places) > 7


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.builds(Route, engines, detokenizers)), max_size=25))
def test_an_index_finds_requests_by_their_peers(steps: list[tuple[str, Route | None]]) -> None:
    at_engines, at_detokenizers = ([PeerId(name, 1) for name in names] for names in (ENGINES, DETOKENIZERS))
    index: RouteIndex[str] = RouteIndex()
    routes: dict[str, Route] = {}
    for key, route in steps:
        routes.pop(key, None)
        if route is None:
            index.discard(key)
        else:
            index.put(key, key, route)
            routes[key] = route
        for engine in at_engines:
            assert set(index.at_engine(engine)) == {key for key, route in routes.items() if route.engine == engine}
        for detokenizer in at_detokenizers:
            expected = {key for key, route in routes.items() if route.detokenizer == detokenizer}
            assert set(index.at_detokenizer(detokenizer)) == expected
        for route in (Route(engine, detokenizer) for engine in at_engines for detokenizer in at_detokenizers):
            assert set(index.on(route)) == {key for key, other in routes.items() if other == route}
    for key in routes:
        index.discard(key)
    assert not index._items


def test_a_request_goes_where_its_needs_are_met_and_nowhere_else() -> None:
    routes = Routes(random.Random(0))
    old, new = PeerId("old", 1), PeerId("new", 1)
    routes.detokenizer_up(old)
    routes.engine_up(PeerId("e-old", 1), OLD)
    routes.engine_peers(PeerId("e-old", 1), [old, new])
    needs = Needs(frozenset({"constraint"}), frozenset({"parse"}))
    assert routes.choose("1", OLD, Prefixes(), needs=needs) is None
    assert not routes.any_joined(needs)
    routes.detokenizer_up(new, ["parse", "later"])
    assert routes.choose("1", OLD, Prefixes(), needs=needs) is None
    routes.engine_up(PeerId("e-new", 1), OLD, capabilities=["generate", "constraint"])
    routes.engine_peers(PeerId("e-new", 1), [old, new])
    chosen = {routes.choose(str(number), OLD, Prefixes(), needs=needs) for number in range(20)}
    assert chosen == {Route(PeerId("e-new", 1), new)}
    assert {routes.choose(f"free {number}", OLD, Prefixes()) for number in range(20)} != chosen
    routes.detokenizer_down(new)
    assert routes.choose("1", OLD, Prefixes(), engine=PeerId("e-new", 1), needs=needs) is None


def test_its_own_zone_comes_first_until_all_engines_there_are_full() -> None:
    """Whatever the others have cached; and the text of an answer stays in the zone, too."""
    routes = Routes(random.Random(0), "here")
    detokenizers = {zone: PeerId(f"d-{zone}", 1) for zone in ("here", "there")}
    for zone, detokenizer in detokenizers.items():
        routes.detokenizer_up(detokenizer, zone=zone)
    far = PeerId("far", 1)
    for engine, zone, capacity in ((PeerId("a", 1), "here", 3), (PeerId("b", 1), "here", 3), (far, None, 9)):
        routes.engine_up(engine, OLD, capacity, zone=zone)
        routes.engine_peers(engine, detokenizers.values())
    routes.prefixes.add(prompt(0), far)
    chosen = [routes.choose(str(number), OLD, prompt(0)) for number in range(8)]
    assert Counter(route.engine.name for route in chosen if route) == {"a": 3, "b": 3, "far": 2}
    assert {route.engine for route in chosen[6:] if route} == {far}
    assert {route.detokenizer for route in chosen if route} == {detokenizers["here"]}
    routes.release("0")
    assert routes.choose("8", OLD, prompt(0)) == chosen[0]
    routes.detokenizer_down(detokenizers["here"])
    route = routes.choose("9", OLD, prompt(1))
    assert route == Route(far, detokenizers["there"])
    for name in ("a", "b"):
        routes.engine_down(PeerId(name, 1))
    assert routes.choose("10", OLD, Prefixes()) == Route(far, detokenizers["there"])


def test_an_engine_that_pools_needs_no_detokenizer() -> None:
    routes = Routes(random.Random(0))
    pools, generates = PeerId("e-pools", 1), PeerId("e-generates", 1)
    routes.engine_up(generates, OLD)
    assert not routes.any_joined()
    routes.engine_up(pools, NEW, capabilities=[POOLING])
    assert routes.any_joined()
    assert routes.generations() == [NEW]
    assert routes.choose("1", OLD, Prefixes()) is None
    route = routes.choose("2", NEW, Prefixes(), choices=5, needs=Needs(engine=frozenset((POOLING,))))
    assert route == Route(pools, None)
    assert (route.deliver_to, routes.loads()[pools.name], routes.requests()) == ("", 5, {pools: 1})
    detokenizer = PeerId("d", 1)
    routes.detokenizer_up(detokenizer)
    routes.detokenizer_hears(detokenizer, [])
    assert routes.partitioned(pools) == frozenset()
    assert routes.partitioned(detokenizer) == {Route(generates, detokenizer)}
    routes.release("2")
    assert (routes.loads()[pools.name], routes.requests()) == (0, {})


def with_adapters(count: int, adapters: Sequence[Adapter], seed: int = 0, capacity: int | None = None) -> Routes:
    """As ``make_routes``; each engine knows the adapters and holds none."""
    routes, detokenizer = Routes(random.Random(seed)), PeerId("d0", 1)
    routes.detokenizer_up(detokenizer)
    for engine in (PeerId(f"e{number}", 1) for number in range(count)):
        routes.engine_up(engine, OLD, capacity)
        routes.engine_peers(engine, [detokenizer])
        routes.adapters.attached(engine, OLD)
        routes.adapters.told(engine, [(one, AdapterState()) for one in adapters], complete=True, now=1)
    return routes


def place(routes: Routes, number: int, adapter: Adapter, prefixes: Prefixes | None = None) -> str:
    """The engine that a request with an adapter goes to."""
    route = routes.choose(str(number), OLD, prefixes or Prefixes(), needs=Needs(adapter=adapter))
    assert route is not None
    return route.engine.name


ADAPTERS = [Adapter(f"a{number}", f"{number:064x}") for number in range(40)]


def test_engines_that_read_an_adapter_are_few_and_the_same_for_every_processor() -> None:
    one, other = with_adapters(8, ADAPTERS, seed=1), with_adapters(8, ADAPTERS, seed=2)
    used = set()
    for number, adapter in enumerate(ADAPTERS):
        places = {place(routes, 4 * number + ask, adapter) for routes in (one, other) for ask in range(4)}
        assert len(places) <= 2
        used |= places
    assert len(used) == 8


def test_an_adapter_in_memory_is_worth_some_requests_and_no_wait() -> None:
    adapter, other = ADAPTERS[:2]
    routes = with_adapters(2, [adapter, other], capacity=100)
    routes.adapters.told(PeerId("e1", 1), [(adapter, AdapterState(loaded=True))], complete=True, now=2)
    family = [prompt(0, tail) for tail in range(20)]
    routes.prefixes.add(family[0], PeerId("e0", 1))
    assert place(routes, 0, adapter, family[1]) == "e1", "the prefixes are of prompts without it"
    for number in range(1, 60):
        place(routes, number, adapter)
        loads = routes.loads()
        assert loads["e1"] - loads["e0"] <= MAX_EXTRA_REQUESTS + 1
    assert loads["e1"] > loads["e0"]
    routes.engine_load(PeerId("e1", 1), 100, 5, 1.0)
    assert place(routes, 60, adapter) == "e0"


def test_only_engines_that_know_the_adapter_get_its_requests() -> None:
    routes = with_adapters(3, ADAPTERS[:1])
    extra = PeerId("extra", 1)
    routes.engine_up(extra, OLD)
    routes.engine_peers(extra, [PeerId("d0", 1)])
    routes.adapters.missed(PeerId("e0", 1), ADAPTERS[0], is_new=True, at=0.0)
    needs = Needs(adapter=ADAPTERS[0])
    begun = {routes.choose(f"b{number}", OLD, Prefixes(), needs=needs, begins=True) for number in range(40)}
    assert {route and route.engine.name for route in begun} <= {"e1", "e2"}, "it begins nothing with it"
    for name in ("e1", "e2"):
        routes.set_taking_work(PeerId(name, 1), taking=False)
    assert place(routes, 0, ADAPTERS[0]) == "e0"
    routes.adapters.missed(PeerId("e0", 1), ADAPTERS[0], is_new=False, at=0.0)
    assert not routes.any_joined(needs)
    needs = Needs(adapter=Adapter("a0", "f" * 64))
    assert not routes.any_joined(needs)
    assert routes.choose("x", OLD, Prefixes(), needs=needs) is None
