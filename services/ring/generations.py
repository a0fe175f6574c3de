"""What a process holds for each generation of the model: some of them side by side while a model is rolled out.

A generation is all engines that serve the same model: equal configuration, template, tokenizer and weights. A request
belongs to the one that admitted it, and never changes it. What is held for a generation is kept while an engine serves
it or a request belongs to it; of those that nobody needs only the newest is kept, so that a process whose one engine is
restarted need not learn everything anew. The newest is the one that the engine which was started last serves: so a
rollout makes a generation the newest as soon as its first engine is there, and going back makes the older one that
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.ring.identity import PeerId

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Generation:
    """What all engines of one generation serve."""

    model: str
    """The name that it is asked for by."""
    digest: str
    """Equal where the model is the same, its weights and its tokenizer included."""


class Generations(Generic[K, V]):
    """What is held (``V``), by generation (``K``)."""

    def __init__(self, most: int) -> None:
        """``most`` are held at a time."""
        self._most = most
        self._held: dict[K, V] = {}
        self._started: dict[K, int] = {}
        """By generation: the incarnation of that engine of it which was started last, as far as is known."""
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
        """What is held for a generation, if anything is."""
        return self._held.get(generation)

    @property
    def newest(self) -> V | None:
        """What is held for the newest generation; None if nothing is held."""
        return next((self._held[generation] for generation in self), None)

    def values(self) -> list[V]:
        """All that is held, for the newest generation first."""
        return [self._held[generation] for generation in self]

    def learn(self, generation: K, engine: PeerId, value: V) -> bool:
        """Hold ``value`` for a generation, which ``engine`` serves and nothing is held for; whether there is room."""
        while len(self._held) >= self._most:
            idle = [other for other in self if not self.needed(other)]
            if not idle:
                return False
            self._drop(idle[-1])
        self._held[generation] = value
        self._started[generation] = engine.incarnation
        return True

    def engine_up(self, engine: PeerId, generation: K) -> bool:
        """An engine was linked; whether something is held for what it serves. If not, it does not count."""
        if generation not in self._held:
            return False
        self._engines[engine] = generation
        self._started[generation] = max(self._started[generation], engine.incarnation)
        self._tidy()
        return True

    def engine_down(self, engine: PeerId) -> None:
        """The link to an engine ended."""
        if self._engines.pop(engine, None) is not None:
            self._tidy()

    def enter(self, generation: K) -> None:
        """A request belongs to a generation, for which something is held."""
        assert generation in self._held
        self._requests[generation] += 1

    def leave(self, generation: K) -> None:
        """A request that belonged to it has ended."""
        self._requests[generation] -= 1
        if not self._requests[generation]:
            del self._requests[generation]
            self._tidy()

    def needed(self, generation: K) -> bool:
        """Whether an engine serves it or a request belongs to it."""
        return generation in self._requests or generation in self._engines.values()

    def _tidy(self) -> None:
        """Drop what nobody needs, the newest aside."""
        for generation in list(self)[1:]:
            if not self.needed(generation):
                self._drop(generation)

    def _drop(self, generation: K) -> None:
        del self._held[generation], self._started[generation]
