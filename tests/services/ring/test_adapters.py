"""What is known of engines' adapters, against a model that keeps all that was said of every link."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.ring.adapters import LONGEST_DOUBT, MAX_TOLD, Adapter, AdapterBook, AdapterState
from services.ring.identity import PeerId
from services.ring.model_generations import Generation

GENERATIONS = [Generation("m", "old"), Generation("m", "new")]
ENGINES = [PeerId(name, life) for name in ("e0", "e1", "e2") for life in (1, 2)]
NAMES = ["a", "b/c"]
ADAPTERS = [Adapter(name, digit * 64) for name in NAMES for digit in "123"]
NEWS = 100
"""The time of the first change that is news; every engine was started before."""
engines, generations = st.sampled_from(ENGINES), st.sampled_from(GENERATIONS)
adapters = st.sampled_from(ADAPTERS)
states = st.builds(AdapterState, st.booleans(), st.booleans())


@dataclass
class Link:
    generation: Generation
    told: dict[Adapter, AdapterState] = field(default_factory=dict)
    since: dict[Adapter, int] = field(default_factory=dict)
    complete: bool = False
    doubts: set[str] = field(default_factory=set)


class BookMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.book = AdapterBook()
        self.links: dict[PeerId, Link] = {}
        self.now = NEWS

    @rule(engine=engines, generation=generations)
    def it_attaches(self, engine: PeerId, generation: Generation) -> None:
        self.book.attached(engine, generation)
        self.links[engine] = Link(generation)

    @rule(engine=engines)
    def it_is_lost(self, engine: PeerId) -> None:
        self.book.detached(engine)
        self.links.pop(engine, None)

    @rule(
        engine=engines,
        news=st.dictionaries(adapters, states, max_size=4),
        gone=st.lists(adapters, max_size=2),
        complete=st.booleans(),
    )
    def it_tells(self, engine: PeerId, news: dict[Adapter, AdapterState], gone: list[Adapter], complete: bool) -> None:
        self.now += 1
        self.book.told(engine, news.items(), gone, complete=complete, now=self.now)
        if (link := self.links.get(engine)) is None:
            return
        link.doubts -= {adapter.name for adapter in (*news, *gone)}
        for adapter in gone:
            link.told.pop(adapter, None)
        for adapter, state in news.items():
            if adapter not in link.told or link.told[adapter].current != state.current:
                link.since[adapter] = self.now if link.complete else engine.incarnation
            link.told[adapter] = state
        link.complete = link.complete or complete

    def begins(self, engine: PeerId, adapter: Adapter) -> bool:
        told = self.links[engine].told if engine in self.links else {}
        return adapter in told and any(state.current for one, state in told.items() if one.name == adapter.name)

    @rule(engine=engines, adapter=adapters, is_new=st.booleans())
    def it_refuses_a_request(self, engine: PeerId, adapter: Adapter, is_new: bool) -> None:
        self.book.missed(engine, adapter, is_new=is_new, at=0.0)
        told = self.links[engine].told if engine in self.links else {}
        if is_new and adapter in told and told[adapter].current:
            told[adapter] = replace(told[adapter], current=False)
            self.links[engine].doubts.add(adapter.name)
        elif is_new and self.begins(engine, adapter):
            told.pop(adapter)
        elif not is_new:
            for each in [each for each in told if each.digest == adapter.digest]:
                if told.pop(each).current:
                    self.links[engine].doubts.add(each.name)

    @rule(engine=engines, adapter=adapters)
    def it_answers_that_it_loaded_one(self, engine: PeerId, adapter: Adapter) -> None:
        self.now += 1
        self.book.loaded_by_call(engine, adapter, self.now)
        if (link := self.links.get(engine)) is None or (adapter in link.told and link.told[adapter].current):
            return
        link.told[adapter] = AdapterState()
        link.doubts.discard(adapter.name)
        link.since[adapter] = self.now if link.complete else engine.incarnation

    @rule(engine=engines, adapter=adapters)
    def it_answers_that_it_unloaded_one(self, engine: PeerId, adapter: Adapter) -> None:
        self.book.unloaded_by_call(engine, adapter, self.now)
        if (link := self.links.get(engine)) is not None and adapter in link.told:
            link.told[adapter] = replace(link.told[adapter], current=False)
            link.doubts.discard(adapter.name)

    @invariant()
    def a_name_is_in_doubt_until_its_engine_tells_of_it(self) -> None:
        for name, generation in product(NAMES, GENERATIONS):
            doubted = any(name in link.doubts for link in self.links.values() if link.generation == generation)
            assert self.book.is_in_doubt(name, generation, LONGEST_DOUBT - 1) == doubted
            assert not self.book.is_in_doubt(name, generation, LONGEST_DOUBT)

    @invariant()
    def it_says_what_each_engine_said_last(self) -> None:
        for engine in ENGINES:
            told = self.links[engine].told if engine in self.links else {}
            assert self.book.of(engine) == (len(told), sum(state.loaded for state in told.values()))
            for adapter in ADAPTERS:
                same = [state for one, state in told.items() if one.digest == adapter.digest]
                assert self.book.knows(engine, adapter) == bool(same)
                assert self.book.begins(engine, adapter) == self.begins(engine, adapter)
                assert self.book.holds(engine, adapter) == any(state.loaded for state in same)

    @invariant()
    def a_name_stands_for_what_took_it_last(self) -> None:
        for generation in GENERATIONS:
            links = [(engine, link) for engine, link in self.links.items() if link.generation == generation]
            assert self.book.is_complete([generation]) == all(link.complete for _, link in links)
            listed = set()
            for name in NAMES:
                known = {adapter for _, link in links for adapter in link.told if adapter.name == name}
                counts = {}
                for adapter in known:
                    having = [link.told[adapter] for _, link in links if adapter in link.told]
                    counts[adapter] = sum(one.current for one in having), sum(one.loaded for one in having)
                assert self.book.under(name, [generation]) == counts
                times = [
                    (link.since[adapter], adapter.digest)
                    for _, link in links
                    for adapter in known & link.told.keys()
                    if link.told[adapter].current
                ]
                current = self.book.current(generation, name)
                assert (None if current is None else current.digest) == (max(times)[1] if times else None)
                if times:
                    listed.add(name)
            assert set(self.book.names(generation)) == listed
            for adapter in ADAPTERS:
                known_there = any(one.digest == adapter.digest for _, link in links for one in link.told)
                assert self.book.anywhere(adapter, generation) == known_there
                begins = any(self.begins(engine, adapter) for engine, _ in links)
                assert self.book.anywhere(adapter, generation, begins=True) == begins

    @invariant()
    def nothing_is_kept_of_what_is_gone(self) -> None:
        known = {adapter.name for link in self.links.values() for adapter in link.told}
        assert self.book._names.keys() == known
        assert set(self.book.all_names()) == known
        assert self.book._engines.keys() == self.links.keys()
        assert self.book._current.keys() == {link.generation for link in self.links.values()}


BookMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBook = BookMachine.TestCase


def test_a_replaced_adapter_is_taken_although_another_engine_has_not_replaced_it_yet() -> None:
    """The one that still has the earlier adapter was started last."""
    book, (old, new) = AdapterBook(), ADAPTERS[:2]
    for engine in (PeerId("e0", 1), PeerId("e1", 2)):
        book.attached(engine, GENERATIONS[0])
        book.told(engine, [(old, AdapterState())], complete=True, now=NEWS)
    book.told(PeerId("e0", 1), [(old, AdapterState(current=False)), (new, AdapterState())], complete=True, now=NEWS)
    assert book.current(GENERATIONS[0], "a") == new


def test_an_engine_that_tells_of_too_many_is_refused() -> None:
    book, engine = AdapterBook(), PeerId("e", 1)
    book.attached(engine, GENERATIONS[0])
    digest = "1" * 64
    many = [(Adapter(str(number), digest), AdapterState()) for number in range(MAX_TOLD)]
    book.told(engine, many, complete=True, now=NEWS)
    with pytest.raises(ValueError, match=f"more than {MAX_TOLD} adapters"):
        book.told(engine, [(Adapter("one", digest), AdapterState())], complete=True, now=NEWS)


@given(st.text(max_size=3))
def test_names_have_no_separator(text: str) -> None:
    for name, digest in ((f"a:{text}", "1" * 64), (text, "1" * 63)):
        with pytest.raises(ValueError, match="is not an adapter's"):
            Adapter(name, digest)
