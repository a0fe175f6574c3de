"""Which adapters each engine knows, as it tells it on its link, and the one that a name stands for.

An adapter is told by name and digest: a name that comes to stand for other contents is another adapter, and requests
that have the earlier one keep it. While engines differ, a name stands for the adapter that took it last: that of an
engine which told it as news, or else of the engine that was started last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from services.ring.identity import ADAPTER_DIGEST, ADAPTER_NAME, PeerId
from services.ring.limits import MAX_ADAPTERS
from services.ring.model_generations import Generation

MAX_TOLD = 2 * MAX_ADAPTERS
"""Adapters that an engine may tell of at a time: those of all names, and as many earlier ones that requests keep."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A model's fine-tuning, by what it is asked for and by its contents."""

    name: str
    digest: str
    """SHA-256 as 64 hexadecimal digits; equal for adapters that add the same to the model."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for a name or a digest that is none."""
        if not ADAPTER_NAME.fullmatch(self.name):
            problem = "1 to 128 characters of [A-Za-z0-9._@/+-], the first a letter or digit"
            raise ValueError(f"{self.name[:200]!r} is not an adapter's name: expected {problem}")
        if not ADAPTER_DIGEST.fullmatch(self.digest):
            raise ValueError(f"{self.digest[:80]!r} is not an adapter's digest: expected 64 hexadecimal digits")

    @property
    def key(self) -> bytes:
        """The digest's bytes, for hashes of what is computed with it."""
        return bytes.fromhex(self.digest)

    def __str__(self) -> str:
        return f"adapter {self.name!r} with digest {self.digest[:12]}…"


@dataclass(frozen=True, slots=True)
class AdapterState:
    """What an engine says of an adapter."""

    current: bool = True
    """Its name stands for it there: new requests may begin with it."""
    loaded: bool = False
    """Its weights are in memory."""


@dataclass(frozen=True, slots=True)
class _Known:
    state: AdapterState
    since: int
    """When its name came to stand for it, on the scale of incarnations."""


@dataclass(slots=True)
class _Told:
    """What an engine has told."""

    generation: Generation
    adapters: dict[Adapter, _Known] = field(default_factory=dict)
    complete: bool = False
    """Whether it has told all."""


class AdapterBook:
    """All adapters of the engines that are linked. One thread writes; others may read."""

    def __init__(self) -> None:
        self._engines: dict[PeerId, _Told] = {}
        self._names: dict[str, frozenset[tuple[PeerId, Adapter]]] = {}
        """By name, what engines know under it; replaced at each change, so that other threads may read it."""

    # Events of links

    def attached(self, engine: PeerId, generation: Generation) -> None:
        """An engine that serves adapters was linked; it will tell which."""
        self.detached(engine)
        self._engines[engine] = _Told(generation)

    def detached(self, engine: PeerId) -> None:
        """The link is gone, and with it all that the engine told. Idempotent."""
        if (told := self._engines.get(engine)) is not None:
            for adapter in list(told.adapters):
                self._drop(engine, told, adapter)
            del self._engines[engine]

    def told(
        self,
        engine: PeerId,
        states: Iterable[tuple[Adapter, AdapterState]],
        gone: Iterable[Adapter] = (),
        *,
        complete: bool,
        now: int,
    ) -> None:
        """An engine told of changes; an engine that is not known is ignored.

        ``now``: the time on the scale of incarnations. Raises ``ValueError`` for more adapters than an engine may know.
        """
        if (told := self._engines.get(engine)) is None:
            return
        for adapter in gone:
            self._drop(engine, told, adapter)
        for adapter, state in states:
            known = told.adapters.get(adapter)
            if known is not None and known.state.current == state.current:
                since = known.since
            else:  # what it tells when it is linked may be as old as the engine
                since = now if told.complete else engine.incarnation
            told.adapters[adapter] = _Known(state, since)
            self._names[adapter.name] = self._names.get(adapter.name, frozenset()) | {(engine, adapter)}
            if len(told.adapters) > MAX_TOLD:
                raise ValueError(f"it knows more than {MAX_TOLD} adapters")
        told.complete = told.complete or complete

    def missed(self, engine: PeerId, adapter: Adapter) -> None:
        """The engine refused a request because it does not know the adapter: so it is, until the engine tells it."""
        if (told := self._engines.get(engine)) is not None:
            self._drop(engine, told, adapter)

    # Questions

    def knows(self, engine: PeerId, adapter: Adapter) -> bool:
        """Whether an engine computes with an adapter."""
        return (told := self._engines.get(engine)) is not None and adapter in told.adapters

    def holds(self, engine: PeerId, adapter: Adapter) -> bool:
        """Whether an engine has an adapter's weights in memory."""
        told = self._engines.get(engine)
        return told is not None and (known := told.adapters.get(adapter)) is not None and known.state.loaded

    def anywhere(self, adapter: Adapter, generation: Generation | None = None) -> bool:
        """Whether any engine, or any of a generation, computes with an adapter."""
        return any(
            known == adapter and (generation is None or self._serves(engine, generation))
            for engine, known in self._names.get(adapter.name, ())
        )

    def current(self, generation: Generation, name: str) -> Adapter | None:
        """The adapter that a name stands for at a generation's engines; None if there is none."""
        found: list[tuple[int, str, Adapter]] = []
        for engine, adapter in self._names.get(name, ()):
            if (told := self._engines.get(engine)) is None or told.generation != generation:
                continue
            if (known := told.adapters.get(adapter)) is not None and known.state.current:
                found.append((known.since, adapter.digest, adapter))
        return max(found)[2] if found else None

    def is_name(self, name: str) -> bool:
        """Whether any engine knows an adapter of that name."""
        return name in self._names

    def names(self, generation: Generation) -> Iterator[str]:
        """Names that requests for a generation may give now, in no order."""
        return (name for name in list(self._names) if self.current(generation, name) is not None)

    def counts(self, generation: Generation, adapter: Adapter) -> tuple[int, int]:
        """Engines of a generation at which the name stands for an adapter, and those that hold its weights."""
        current = loaded = 0
        for told in list(self._engines.values()):
            if told.generation == generation and (known := told.adapters.get(adapter)) is not None:
                current += known.state.current
                loaded += known.state.loaded
        return current, loaded

    def under(self, generation: Generation, name: str) -> list[Adapter]:
        """All adapters of a name at a generation's engines, by digest."""
        known = {adapter for engine, adapter in self._names.get(name, ()) if self._serves(engine, generation)}
        return sorted(known, key=lambda adapter: adapter.digest)

    def all_names(self, generation: Generation) -> list[str]:
        """Names at a generation's engines in order, those of earlier adapters included."""
        return sorted(name for name in list(self._names) if self.under(generation, name))

    def of(self, engine: PeerId) -> tuple[int, int]:
        """Adapters that an engine knows, and those of them that it holds in memory."""
        told = self._engines.get(engine)
        known = () if told is None else tuple(told.adapters.values())
        return len(known), sum(one.state.loaded for one in known)

    def is_complete(self, generations: Iterable[Generation]) -> bool:
        """Whether all engines of these generations have told all that they know."""
        wanted = frozenset(generations)
        return all(told.complete for told in list(self._engines.values()) if told.generation in wanted)

    def _serves(self, engine: PeerId, generation: Generation) -> bool:
        return (told := self._engines.get(engine)) is not None and told.generation == generation

    def _drop(self, engine: PeerId, told: _Told, adapter: Adapter) -> None:
        if told.adapters.pop(adapter, None) is None:
            return
        if left := self._names[adapter.name] - {(engine, adapter)}:
            self._names[adapter.name] = left
        else:
            del self._names[adapter.name]
