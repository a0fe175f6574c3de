"""Which adapters each engine knows, as it tells it on its link, and the one that a name stands for.

An adapter is told by name and digest: a name that comes to stand for other contents is another adapter, and requests
that have the earlier one keep it, at engines that have its digest under any name. While engines differ, a name stands
for the adapter that took it last: that of an engine which told it as news, or else of the engine that was started last.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from services.ring.identity import ADAPTER_DIGEST, ADAPTER_NAME, PeerId
from services.ring.limits import MAX_ADAPTERS
from services.ring.model_generations import Generation

MAX_TOLD = 2 * MAX_ADAPTERS
"""Adapters that an engine may tell of at a time: those of all names, and as many earlier ones that requests keep."""

LONGEST_DOUBT = 10.0
"""Seconds in which an engine sees that the files of an adapter were replaced."""


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
    generation: Generation
    state: AdapterState
    since: int
    """When its name came to stand for it, on the scale of incarnations."""


@dataclass(slots=True)
class _Told:
    """What an engine has told."""

    generation: Generation
    adapters: dict[Adapter, _Known] = field(default_factory=dict)
    digests: dict[str, set[Adapter]] = field(default_factory=dict)
    """The adapters by digest."""
    complete: bool = False
    """Whether it has told all."""
    doubts: dict[str, float] = field(default_factory=dict)
    """Names whose adapter it refused, and has told nothing of since; until when, on the monotonic clock."""


class AdapterBook:
    """All adapters of the engines that are linked. Other threads may ask for ``current`` and ``names``."""

    def __init__(self) -> None:
        self._engines: dict[PeerId, _Told] = {}
        self._names: dict[str, dict[Adapter, dict[PeerId, _Known]]] = {}
        """By name, the adapters that engines know under it."""
        self._current: dict[Generation, dict[str, Adapter]] = {}
        """The adapter that each name stands for."""
        self.revision = 0
        """Grows when a name comes to stand for another adapter, or for none."""

    # Events of links

    def attached(self, engine: PeerId, generation: Generation) -> None:
        """An engine that serves adapters was linked; it will tell which."""
        self.detached(engine)
        one = next((known for known in self._current if known == generation), generation)  # to be told by identity
        self._engines[engine] = _Told(one)
        self._current.setdefault(one, {})

    def detached(self, engine: PeerId) -> None:
        """The link is gone, and with it all that the engine told. Idempotent."""
        if (told := self._engines.get(engine)) is not None:
            for adapter in list(told.adapters):
                self._drop(engine, told, adapter)
            del self._engines[engine]
            if not any(other.generation == told.generation for other in self._engines.values()):
                del self._current[told.generation]

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
            told.doubts.pop(adapter.name, None)
            self._drop(engine, told, adapter)
        for adapter, state in states:
            told.doubts.pop(adapter.name, None)
            known = told.adapters.get(adapter)
            if known is not None and known.state.current == state.current:
                since = known.since
            else:  # what it tells when it is linked may be as old as the engine
                since = now if told.complete else engine.incarnation
            told.adapters[adapter] = now_known = _Known(told.generation, state, since)
            told.digests.setdefault(adapter.digest, set()).add(adapter)
            self._names.setdefault(adapter.name, {}).setdefault(adapter, {})[engine] = now_known
            self._update(told.generation, adapter.name)
            if len(told.adapters) > MAX_TOLD:
                raise ValueError(f"it knows more than {MAX_TOLD} adapters")
        told.complete = told.complete or complete

    def loaded_by_call(self, engine: PeerId, adapter: Adapter, now: int) -> None:
        """An engine answered that a name stands for an adapter from now on; it will tell so on its link, too."""
        known = self._known(engine, adapter)
        if known is None or not known.state.current:
            self.told(engine, [(adapter, AdapterState())], complete=False, now=now)

    def unloaded_by_call(self, engine: PeerId, adapter: Adapter, now: int) -> None:
        """An engine answered that a name stands for no adapter any more; it will tell so on its link, too."""
        if (known := self._known(engine, adapter)) is not None:
            self.told(engine, [(adapter, replace(known.state, current=False))], complete=False, now=now)

    def changed_at(self, engine: PeerId, name: str) -> int:
        """When what a name stands for at an engine last changed, as far as it told; on the scale of incarnations."""
        under = self._names.get(name, {}).values()
        return max((engines[engine].since for engines in under if engine in engines), default=0)

    def missed(self, engine: PeerId, adapter: Adapter, *, is_new: bool, at: float) -> None:
        """The engine refused a request with an adapter, new or moved there: so it is, until the engine tells otherwise.

        It begins nothing with an adapter whose name was unloaded, but may go on with it. An engine that did not tell so
        before will soon tell what the name stands for: its files were replaced. ``at``: the monotonic time.
        """
        if (told := self._engines.get(engine)) is None:
            return
        known = told.adapters.get(adapter)
        if is_new and known is not None and known.state.current:
            self.told(engine, [(adapter, replace(known.state, current=False))], complete=False, now=known.since)
            told.doubts[adapter.name] = at + LONGEST_DOUBT
        elif is_new and self.begins(engine, adapter):
            self._drop(engine, told, adapter)
        elif not is_new:
            for each in list(told.digests.get(adapter.digest, ())):
                if told.adapters[each].state.current:
                    told.doubts[each.name] = at + LONGEST_DOUBT
                self._drop(engine, told, each)

    # Questions

    def knows(self, engine: PeerId, adapter: Adapter) -> bool:
        """Whether an engine goes on with requests that have an adapter: it has the digest, under whichever name."""
        return (told := self._engines.get(engine)) is not None and adapter.digest in told.digests

    def begins(self, engine: PeerId, adapter: Adapter) -> bool:
        """Whether an engine begins requests with an adapter: its name was not unloaded there, but may be replaced."""
        return self._known(engine, adapter) is not None and any(
            engine in engines and engines[engine].state.current for engines in self._names[adapter.name].values()
        )

    def holds(self, engine: PeerId, adapter: Adapter) -> bool:
        """Whether an engine has an adapter's weights in memory."""
        if (told := self._engines.get(engine)) is None:
            return False
        return any(told.adapters[each].state.loaded for each in told.digests.get(adapter.digest, ()))

    def anywhere(self, adapter: Adapter, generation: Generation, *, begins: bool = False) -> bool:
        """Whether any engine of a generation goes on with requests that have an adapter, or ``begins`` some."""
        takes = self.begins if begins else self.knows
        return any(told.generation == generation and takes(engine, adapter) for engine, told in self._engines.items())

    def current(self, generation: Generation, name: str) -> Adapter | None:
        """The adapter that a name stands for at a generation's engines; None if there is none."""
        return self._current.get(generation, {}).get(name)

    def names(self, generation: Generation) -> list[str]:
        """Names that requests for a generation may give now, in no order."""
        return list(self._current.get(generation, ()))

    def all_names(self) -> list[str]:
        """Names of all generations, those of earlier adapters included, in no order."""
        return list(self._names)

    def names_of(self, digest: str, generation: Generation) -> set[str]:
        """Names under which engines of a generation have a digest."""
        told = (each for each in self._engines.values() if each.generation == generation)
        return {adapter.name for each in told for adapter in each.digests.get(digest, ())}

    def under(self, name: str, generations: Container[Generation]) -> dict[Adapter, tuple[int, int]]:
        """All adapters of a name at the engines of these generations, by digest.

        With each: engines at which the name stands for it, and those that hold its weights.
        """
        found: dict[Adapter, tuple[int, int]] = {}
        for adapter, engines in sorted(self._names.get(name, {}).items(), key=lambda each: each[0].digest):
            states = [known.state for known in engines.values() if known.generation in generations]
            if states:
                found[adapter] = sum(state.current for state in states), sum(state.loaded for state in states)
        return found

    def of(self, engine: PeerId) -> tuple[int, int]:
        """Adapters that an engine knows, and those of them that it holds in memory."""
        told = self._engines.get(engine)
        known = () if told is None else tuple(told.adapters.values())
        return len(known), sum(one.state.loaded for one in known)

    def is_in_doubt(self, name: str, generation: Generation, at: float) -> bool:
        """Whether an engine of a generation may soon tell what a name stands for; ``at``: the monotonic time."""
        return any(told.generation == generation and told.doubts.get(name, at) > at for told in self._engines.values())

    def is_complete(self, generations: Iterable[Generation]) -> bool:
        """Whether all engines of these generations have told all that they know."""
        wanted = frozenset(generations)
        return all(told.complete for told in list(self._engines.values()) if told.generation in wanted)

    def _known(self, engine: PeerId, adapter: Adapter) -> _Known | None:
        """What an engine told of an adapter under its name."""
        return None if (told := self._engines.get(engine)) is None else told.adapters.get(adapter)

    def _update(self, generation: Generation, name: str) -> None:
        """Find anew what a name stands for."""
        found: list[tuple[int, str, Adapter]] = []
        for adapter, engines in self._names.get(name, {}).items():
            current = (each for each in engines.values() if each.state.current and each.generation is generation)
            if (since := max((known.since for known in current), default=None)) is not None:
                found.append((since, adapter.digest, adapter))
        names = self._current[generation]
        before, after = names.pop(name, None), max(found)[2] if found else None
        if after is not None:
            names[name] = after
        self.revision += before != after

    def _drop(self, engine: PeerId, told: _Told, adapter: Adapter) -> None:
        if told.adapters.pop(adapter, None) is None:
            return
        told.digests[adapter.digest].discard(adapter)
        if not told.digests[adapter.digest]:
            del told.digests[adapter.digest]
        under = self._names[adapter.name]
        del under[adapter][engine]
        if not under[adapter]:
            del under[adapter]
        if not under:
            del self._names[adapter.name]
        self._update(told.generation, adapter.name)
