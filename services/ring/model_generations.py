"""The values a process holds per generation of the model: several at a time during a rollout.

A generation is all engines that serve the same model: equal configuration, template, tokenizer and weights. A request
belongs to the generation that admitted it until its end. A process holds a generation while an engine serves it or a
request belongs to it; it also keeps the newest one, so that it need not load everything again when its only engine
restarts. Where models of several kinds are served side by side, it keeps the newest of each kind. The newest is the
generation of the engine that was started last: a rollout makes a generation the newest as soon as its first engine is
linked, and a rollback makes the older one the newest again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.ring.identity import PeerId

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Generation:
    """Identifies a generation."""

    model: str
    """The name in requests."""
    digest: str
    """Digest of the model, with its weights and its tokenizer."""


class Generations(Generic[K, V]):
    """Maps generations (``K``) to values (``V``)."""

    def __init__(self, max_generations: int, kind_of: Callable[[V], Hashable] = lambda value: None) -> None:
        """``kind_of``: tells values apart, of each of which the newest is kept."""
        self._max_generations = max_generations
        self._kind_of = kind_of
        self._held: dict[K, V] = {}
        self._started: dict[K, int] = {}
        """For each generation, the incarnation of its engine that was started last."""
        self._engines: dict[PeerId, K] = {}
        self._requests: Counter[K] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[K]:
        """The generations, the newest first."""
        return iter(sorted(self._held, key=lambda generation: -self._started[generation]))

    def __contains__(self, generation: K) -> bool:
        return generation in self._held

    def get(self, generation: K) -> V | None:
        """The value of a generation; None if it is not held."""
        return self._held.get(generation)

    @property
    def newest(self) -> V | None:
        """The value of the newest generation; None if none is held."""
        return next((self._held[generation] for generation in self), None)

    def values(self) -> list[V]:
        """All values, the newest generation first."""
        return [self._held[generation] for generation in self]

    def learn(self, generation: K, engine: PeerId, value: V) -> bool:
        """Hold a generation that ``engine`` serves and that is not held yet; returns whether there is room."""
        while len(self._held) >= self._max_generations:
            idle = [other for other in self if not self.needed(other)]
            if not idle:
                return False
            self._drop(idle[-1])
        self._held[generation] = value
        self._started[generation] = engine.incarnation
        return True

    def replace(self, generation: K, value: V) -> None:
        """Set the value of a generation that is held."""
        assert generation in self._held
        self._held[generation] = value

    def engine_up(self, engine: PeerId, generation: K) -> bool:
        """An engine was linked; returns whether its generation is held. If not, the engine does not count."""
        if generation not in self._held:
            return False
        self._engines[engine] = generation
        self._started[generation] = max(self._started[generation], engine.incarnation)
        self._drop_unneeded()
        return True

    def engine_down(self, engine: PeerId) -> None:
        if self._engines.pop(engine, None) is not None:
            self._drop_unneeded()

    def enter(self, generation: K) -> None:
        """Count a request that belongs to a generation, which must be held."""
        assert generation in self._held
        self._requests[generation] += 1

    def leave(self, generation: K) -> None:
        self._requests[generation] -= 1
        if not self._requests[generation]:
            del self._requests[generation]
            self._drop_unneeded()

    def needed(self, generation: K) -> bool:
        """Whether an engine serves it or a request belongs to it."""
        return generation in self._requests or generation in self._engines.values()

    def _drop_unneeded(self) -> None:
        """Drop the generations that are not needed, except the newest of each kind."""
        kinds: set[Hashable] = set()
        for generation in self:
            kind = self._kind_of(self._held[generation])
            if kind in kinds and not self.needed(generation):
                self._drop(generation)
            kinds.add(kind)

    def _drop(self, generation: K) -> None:
        del self._held[generation], self._started[generation]
