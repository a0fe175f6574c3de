"""What is held for generations of the model, against a model that remembers who needs which."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.ring.identity import PeerId
from services.ring.model_generations import Generations

MOST = 2
generations = st.sampled_from("ABCD")
engines = st.sampled_from(["e0", "e1", "e2"])


class GenerationsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.generations: Generations[str, str] = Generations(MOST)
        self.lives = 0
        self.linked: dict[PeerId, str] = {}
        self.requests: list[str] = []
        self.started: dict[str, int] = {}

    def needed(self) -> set[str]:
        return {*self.linked.values(), *self.requests}

    @rule(name=engines, generation=generations, before=st.booleans())
    def an_engine_comes(self, name: str, generation: str, before: bool) -> None:
        """Started just now, or ``before`` all that were met: its address was found late."""
        self.lives += 1
        engine = PeerId(name, 1000 - self.lives if before else 1000 + self.lives)
        held, needed = set(self.generations), self.needed()
        if generation not in held:
            learned = self.generations.learn(generation, engine, f"all of {generation}")
            assert learned == (len(needed & held) < MOST), "there is room unless all that is held is needed"
        up = self.generations.engine_up(engine, generation)
        assert up == (generation in self.generations)
        if up:
            self.linked[engine] = generation
            started = self.started[generation] if generation in held else engine.incarnation
            self.started[generation] = max(started, engine.incarnation)

    @precondition(lambda self: self.linked)
    @rule(data=st.data())
    def an_engine_goes(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(self.linked, key=str)))
        del self.linked[engine]
        self.generations.engine_down(engine)

    @precondition(lambda self: len(self.generations))
    @rule(data=st.data())
    def a_request_begins(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.generations)))
        self.generations.enter(generation)
        self.requests.append(generation)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def a_request_ends(self, data: st.DataObject) -> None:
        generation = data.draw(st.sampled_from(sorted(self.requests)))
        self.requests.remove(generation)
        self.generations.leave(generation)

    @invariant()
    def what_is_needed_is_held_and_little_else(self) -> None:
        held = set(self.generations)
        assert self.needed() <= held
        assert len(held) <= MOST
        assert len(held - self.needed()) <= 1
        assert all(self.generations.get(generation) == f"all of {generation}" for generation in held)

    @invariant()
    def the_newest_is_that_of_the_engine_started_last(self) -> None:
        ordered = sorted(self.generations, key=lambda generation: -self.started[generation])
        assert list(self.generations) == ordered
        assert self.generations.newest == (f"all of {ordered[0]}" if ordered else None)
        for idle in set(ordered) - self.needed():
            assert idle == ordered[0], "of what nobody needs, the newest alone is kept"


GenerationsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGenerations = GenerationsMachine.TestCase
