"""Which pairs carry requests, against a model that knows every peer's whole state."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.ring.identity import PeerId
from services.ring.routes import Route, Routes

ENGINES, DETOKENIZERS = ("e0", "e1"), ("d0", "d1", "d2")
engine_names, detokenizer_names = st.sampled_from(ENGINES), st.sampled_from(DETOKENIZERS)
lives = st.integers(1, 2)


@dataclass
class Known:
    """All that was last said of a peer's present life."""

    peer: PeerId
    taking: bool = True
    load: int = 0
    attached: set[PeerId] = field(default_factory=set)


class RoutesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.routes = Routes()
        self.engines: dict[str, Known] = {}
        self.detokenizers: dict[str, Known] = {}

    def known(self, peer: PeerId) -> Known | None:
        known = self.engines.get(peer.name) or self.detokenizers.get(peer.name)
        return known if known is not None and known.peer == peer else None

    @rule(name=engine_names, life=lives)
    def engine_up(self, name: str, life: int) -> None:
        self.routes.engine_up(PeerId(name, life))
        self.engines[name] = Known(PeerId(name, life))

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

    @rule(name=engine_names, life=lives, attached=st.sets(st.tuples(detokenizer_names, lives)))
    def engine_peers(self, name: str, life: int, attached: set[tuple[str, int]]) -> None:
        peers = {PeerId(*one) for one in attached}
        self.routes.engine_peers(PeerId(name, life), peers)
        if known := self.known(PeerId(name, life)):
            known.attached = peers

    @rule(name=engine_names | detokenizer_names, life=lives, taking=st.booleans())
    def take_work(self, name: str, life: int, taking: bool) -> None:
        self.routes.take_work(PeerId(name, life), taking)
        if known := self.known(PeerId(name, life)):
            known.taking = taking

    @rule(name=engine_names | detokenizer_names, life=lives, load=st.integers(0, 5))
    def report(self, name: str, life: int, load: int) -> None:
        self.routes.report(PeerId(name, life), load)
        if known := self.known(PeerId(name, life)):
            known.load = load

    def pairs(self, engine: PeerId | None) -> dict[Route, tuple[int, int]]:
        """Every pair that may be chosen, with its loads."""
        return {
            Route(e.peer, d.peer): (e.load, d.load)
            for e in self.engines.values()
            for d in self.detokenizers.values()
            if d.peer in e.attached and d.taking and (e.taking if engine is None else e.peer == engine)
        }

    @rule(only=st.none() | st.tuples(engine_names, lives))
    def choose(self, only: tuple[str, int] | None) -> None:
        engine = None if only is None else PeerId(*only)
        chosen, pairs = self.routes.choose(engine=engine), self.pairs(engine)
        if chosen is None:
            assert not pairs
            return
        assert pairs[chosen] == min(pairs.values()), "the least loaded, by the engine first"
        self.engines[chosen.engine.name].load += 1
        self.detokenizers[chosen.detokenizer.name].load += 1

    @invariant()
    def it_is_ready_while_a_pair_takes_work(self) -> None:
        assert self.routes.any_joined() == bool(self.pairs(None))


RoutesMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestRoutes = RoutesMachine.TestCase


def test_equal_pairs_take_turns() -> None:
    routes = Routes()
    for name in ENGINES:
        routes.engine_up(PeerId(name, 1))
        routes.engine_peers(PeerId(name, 1), [PeerId(name, 1) for name in DETOKENIZERS])
    for name in DETOKENIZERS:
        routes.detokenizer_up(PeerId(name, 1))
    chosen = [routes.choose() for _ in range(12)]
    for name in ENGINES:
        assert sum(route is not None and route.engine.name == name for route in chosen) == 6
    for name in DETOKENIZERS:
        assert sum(route is not None and route.detokenizer.name == name for route in chosen) == 4


def test_a_report_says_all_that_was_routed_before() -> None:
    """What it counts is not counted twice."""
    routes = Routes()
    routes.detokenizer_up(PeerId("d0", 1))
    for name in ENGINES:
        routes.engine_up(PeerId(name, 1))
        routes.engine_peers(PeerId(name, 1), [PeerId("d0", 1)])
    for _ in range(6):
        routes.choose()
    routes.report(PeerId("e0", 1), 2)  # the other holds three, as far as is known
    route = routes.choose()
    assert route is not None
    assert route.engine.name == "e0"
