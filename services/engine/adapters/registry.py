"""The adapters that an engine knows by name, and what its peers must be told of them.

A name stands for one adapter at a time. One that is replaced or unloaded is *retired*: the requests that have it keep
it, and it stays known for a while after that, for requests that began on other engines.

Plain data of the event loop: whoever reads files (``folder``, ``control``) and loads weights (``queue``) does it in
threads, and enters here what came of it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from services.ring.errors import Code, Reason, Refused, invalid_field
from services.ring.identity import ADAPTER_DIGEST, check_adapter_name
from services.ring.limits import MAX_ADAPTERS

if TYPE_CHECKING:
    from engine_core.lora.adapter import AdapterFile  # it imports torch

MAX_RETIRED = 256
"""Retired adapters that stay known without requests; the ones retired first go first."""
NEWS_PER_FRAME = 256
"""Adapters in one frame."""


@dataclass(slots=True, eq=False)
class Generation:
    """An adapter under a name."""

    name: str
    file: AdapterFile
    path: str
    """The folder that it was read from, and is loaded from."""
    is_current: bool = True
    """Whether the name stands for it; else it is retired."""
    users: set[str] = field(default_factory=set)
    """Core ids of the requests that have it."""

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.file.digest


class AdapterNews:
    """What one peer has still to be told."""

    def __init__(self, registry: AdapterRegistry) -> None:
        self._registry = registry
        self._changed: OrderedDict[tuple[str, str], None] = OrderedDict.fromkeys(each.key for each in registry.known())
        """Names and digests of adapters of which something changed."""
        self._is_complete = False
        """Whether the peer was told that nothing is left."""

    def __bool__(self) -> bool:
        return bool(self._changed) or (self._registry.is_complete and not self._is_complete)

    def changed(self, key: tuple[str, str]) -> None:
        """Tell it, behind what is to be told already: the present adapter of a name before the one that it replaced."""
        self._changed[key] = None
        self._changed.move_to_end(key)

    def take(self) -> tuple[list[Generation], list[tuple[str, str]], bool]:
        """For the next frame: adapters that are known, others that no longer are, and whether nothing is left."""
        known, gone = [], []
        for key in list(islice(self._changed, NEWS_PER_FRAME)):
            del self._changed[key]
            generation = self._registry.get(*key)
            if generation is None:
                gone.append(key)
            else:
                known.append(generation)
        self._is_complete = self._registry.is_complete and not self._changed
        return known, gone, self._is_complete


class AdapterRegistry:
    """The adapters of an engine, by name and digest."""

    def __init__(self, model: str, on_change: Callable[[], None] = lambda: None) -> None:
        """``model``: the name that no adapter may have. ``on_change`` is called when peers have news."""
        self._model = model
        self._on_change = on_change
        self._current: dict[str, Generation] = {}
        self._all: dict[tuple[str, str], Generation] = {}
        """By name and digest."""
        self._by_digest: dict[str, set[Generation]] = {}
        self._used: dict[str, Generation] = {}
        """By core id."""
        self._unused: OrderedDict[Generation, None] = OrderedDict()
        """Retired ones without requests."""
        self._loaded: set[str] = set()
        """Digests."""
        self._told: set[AdapterNews] = set()
        self.is_complete = False
        """Whether everything was entered that was there when the engine started."""
        self.revision = 0
        """Grows when a name comes to stand for another adapter, or for none."""

    def __len__(self) -> int:
        """Names."""
        return len(self._current)

    # What is known

    def known(self) -> Iterable[Generation]:
        return self._all.values()

    def current(self) -> Iterable[Generation]:
        return self._current.values()

    def find(self, name: str) -> Generation | None:
        """What a name stands for."""
        return self._current.get(name)

    def get(self, name: str, digest: str) -> Generation | None:
        """One that is current or retired."""
        return self._all.get((name, digest))

    def wanted(self, name: str, digest: str, *, is_new: bool = True) -> Generation:
        """As ``get``, for a request; ``is_new``: it has not begun elsewhere. Raises ``Refused``.

        A new request may be of an adapter that was just replaced, whose name it was admitted under; not of one that was
        unloaded. One that has begun goes on with the digest under whichever name: that of its folder, if it was loaded
        under another one by a call, of which an engine that was started since knows nothing.
        """
        check_adapter_name("adapter.name", name)
        if ADAPTER_DIGEST.fullmatch(digest) is None:
            raise invalid_field("adapter.digest", f"{digest[:80]!r}: expected SHA-256 as 64 digits of 0-9 and a-f")
        generation, now = self.get(name, digest), self.find(name)
        if generation is not None and not (is_new and now is None):
            return generation
        if not is_new and (same := self._by_digest.get(digest)):
            return min(same, key=lambda each: (not each.is_current, each.name))
        other = "no adapter of that name" if now is None else f"{now.file.digest[:16]}… under that name"
        message = f"adapter: {name!r} of digest {digest[:16]}… is not known here; this engine has {other}"
        raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.ADAPTER_GONE, field="adapter")

    def is_loaded(self, generation: Generation) -> bool:
        return generation.file.digest in self._loaded

    def page(self, after: str, limit: int) -> tuple[Sequence[Generation], bool]:
        """Those of the next ``limit`` names behind ``after``, by name, current ones first; whether more follow."""
        by_name: dict[str, list[Generation]] = {}
        for generation in self._all.values():
            if generation.name > after:
                by_name.setdefault(generation.name, []).append(generation)
        names = heapq.nsmallest(limit + 1, by_name)
        listed = [each for name in names[:limit] for each in sorted(by_name[name], key=lambda one: not one.is_current)]
        return listed, len(names) > limit

    # Changes

    def check(self, name: str) -> None:
        """Raise ``Refused`` unless an adapter may have this name."""
        check_adapter_name("name", name)
        if name == self._model:
            raise invalid_field("name", f"{name!r} is the model's own: expected another")
        if name not in self._current and len(self._current) >= MAX_ADAPTERS:
            message = f"name: the limit of {MAX_ADAPTERS} known adapters is reached; unload another first"
            raise Refused(Code.RESOURCE_EXHAUSTED, message, reason=Reason.QUOTA, field="name")

    def put(self, name: str, file: AdapterFile, path: str) -> Generation | None:
        """Let a name stand for an adapter; returns the one that it replaces. Raises ``Refused`` like ``check``."""
        self.check(name)
        before = self._current.get(name)
        if before is not None and before.file.digest == file.digest:
            before.path = path
            self._tell(before)  # a peer that was refused may believe that it is not known here
            self._on_change()
            return None
        generation = self._all.get((name, file.digest))
        if generation is None:
            generation = self._all[name, file.digest] = Generation(name, file, path)
            self._by_digest.setdefault(file.digest, set()).add(generation)
        else:
            generation.is_current, generation.path = True, path
            self._unused.pop(generation, None)
        self._current[name] = generation
        self._tell(generation)
        if before is not None:
            self._retire(before)
        self.revision += 1
        self._on_change()
        return before

    def remove(self, name: str) -> Generation | None:
        """Let a name stand for nothing; returns the adapter that it stood for."""
        if (generation := self._current.pop(name, None)) is not None:
            self._retire(generation)
            self.revision += 1
            self._on_change()
        return generation

    def complete(self) -> None:
        """What was there when the engine started is entered."""
        if not self.is_complete:
            self.is_complete = True
            self._on_change()

    def tell_again(self, generation: Generation) -> None:
        """Tell peers of an adapter as if it had changed."""
        if self._all.get(generation.key) is generation:
            self._tell(generation)
            self._on_change()

    def use(self, core_id: str, generation: Generation) -> None:
        """A request has it, until ``release``."""
        self._used[core_id] = generation
        generation.users.add(core_id)
        self._unused.pop(generation, None)

    def release(self, core_id: str) -> None:
        """The request has ended. Idempotent."""
        if (generation := self._used.pop(core_id, None)) is not None:
            generation.users.discard(core_id)
            if not generation.is_current and not generation.users:
                self._keep_unused(generation)

    def used_by(self, core_id: str) -> Generation | None:
        return self._used.get(core_id)

    def set_loaded(self, digest: str, *, loaded: bool) -> None:
        """The adapter's weights were loaded, or have made room for others."""
        if loaded:
            self._loaded.add(digest)
        else:
            self._loaded.discard(digest)
        for generation in self._by_digest.get(digest, ()):
            self._tell(generation)
        self._on_change()

    def _retire(self, generation: Generation) -> None:
        generation.is_current = False
        self._tell(generation)
        if not generation.users:
            self._keep_unused(generation)

    def _keep_unused(self, generation: Generation) -> None:
        self._unused[generation] = None
        while len(self._unused) > MAX_RETIRED:
            self._forget(self._unused.popitem(last=False)[0])

    def _forget(self, generation: Generation) -> None:
        del self._all[generation.key]
        same = self._by_digest[generation.file.digest]
        same.discard(generation)
        if not same:
            del self._by_digest[generation.file.digest]
        self._tell(generation)
        self._on_change()

    # Peers

    def listen(self) -> AdapterNews:
        """What an attached peer must be told, from now on."""
        news = AdapterNews(self)
        self._told.add(news)
        return news

    def ignore(self, news: AdapterNews) -> None:
        self._told.discard(news)

    def _tell(self, generation: Generation) -> None:
        for news in self._told:
            news.changed(generation.key)
