"""When requests may begin that need an adapter: a state machine, whose owner loads adapters and admits requests.

An adapter is *active* while requests of it are under way or it is being loaded; at most ``max_loras`` are. Others stay
loaded, at most ``max_loaded`` of at most ``max_bytes`` together, until the least recently used ones make room. Requests
of active adapters begin at once. One whose adapter finds no room waits and holds up nobody; tenants get room in turn.
Lest others of active adapters pass by for ever, after ``MAX_OVERTAKES`` they wait, too, until the next one has room;
and lest smaller adapters do, after ``MAX_SKIPS`` the tenant whose turn it is has room next.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count

MAX_OVERTAKES = 256
MAX_SKIPS = 64


@dataclass(frozen=True, slots=True)
class Admit:
    """Begin a request: its adapter is loaded, and stays so until the request's ``end``."""

    request_id: str
    adapter_id: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load an adapter, after others have made room; ``loaded`` or ``failed`` says what came of it."""

    adapter_id: int
    digest: str
    evicted: tuple[int, ...]
    """Adapters to unload first, which no request uses."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """End a request: its adapter could not be loaded."""

    request_id: str


Action = Admit | Load | Refuse


@dataclass(slots=True, eq=False)
class _Place:
    """An adapter that is loaded, or being loaded."""

    adapter_id: int
    digest: str
    nbytes: int
    requests: dict[str, None] = field(default_factory=dict)
    """Those under way, or that begin once it is loaded."""
    is_loaded: bool = False

    @property
    def is_active(self) -> bool:
        return bool(self.requests) or not self.is_loaded


@dataclass(slots=True, eq=False)
class _Wanted:
    """An adapter that has no room, and its requests."""

    nbytes: int
    requests: dict[str, str] = field(default_factory=dict)
    """The tenant of each, in order of arrival."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A request of an active adapter that lets others have room first."""

    tenant: str
    digest: str
    nbytes: int


class AdapterSchedule:
    """Each method returns what the owner has to do, in this order.

    None takes longer with more waiting requests, but for those that it admits.
    """

    def __init__(self, max_loras: int, max_loaded: int, max_bytes: int) -> None:
        self._max_loras = max_loras
        self._max_loaded = max_loaded
        self._max_bytes = max_bytes
        self._ids = count()
        self._places: dict[str, _Place] = {}
        """By digest."""
        self._inactive: OrderedDict[str, _Place] = OrderedDict()
        """Those that are not active, the least recently used first."""
        self._by_id: dict[int, _Place] = {}
        self._place_of: dict[str, _Place] = {}
        """By request."""
        self._wanted: dict[str, _Wanted] = {}
        """By digest."""
        self._turns: OrderedDict[str, OrderedDict[str, int]] = OrderedDict()
        """Tenants that wait for room, whose turn is next first: their digests, in order of arrival, and how many
        requests each has. None is empty."""
        self._held: OrderedDict[str, _Held] = OrderedDict()
        """By request."""
        self._digest_of: dict[str, str] = {}
        """Of each request that waits for room."""
        self._nbytes = self._active_bytes = 0
        self._overtakes = 0
        """Requests that began since room was last found, while others waited for it."""
        self._skips = 0
        """Adapters that got room although it was another tenant's turn, whose adapter is larger than what is left."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room; not those whose adapter is being loaded."""
        return len(self._digest_of) + len(self._held)

    @property
    def num_loaded(self) -> int:
        """Adapters that are loaded, or being loaded."""
        return len(self._places)

    @property
    def num_active(self) -> int:
        return len(self._places) - len(self._inactive)

    @property
    def nbytes(self) -> int:
        """Bytes of the adapters that are loaded, or being loaded."""
        return self._nbytes

    def holds(self, digest: str) -> bool:
        """Whether an adapter is loaded."""
        return (place := self._places.get(digest)) is not None and place.is_loaded

    def waits(self, request_id: str) -> bool:
        """Whether a request waits for room."""
        return request_id in self._digest_of or request_id in self._held

    def add(self, request_id: str, tenant: str, digest: str, nbytes: int) -> list[Action]:
        """A request of the adapter with this ``digest``, which takes ``nbytes``; its id is new."""
        if nbytes > self._max_bytes:
            return [Refuse(request_id)]
        held, actions = _Held(tenant, digest, nbytes), list[Action]()
        place = self._places.get(digest)
        if self._is_closed and place is not None and place.is_active:
            self._held[request_id] = held
            return actions
        self._begin_or_wait(request_id, held, actions)
        return [*actions, *self._go_on()]

    def end(self, request_id: str) -> list[Action]:
        """A request has ended, or waits no longer. Idempotent."""
        if (place := self._place_of.pop(request_id, None)) is not None:
            del place.requests[request_id]
            self._settle(place)
        elif request_id in self._digest_of:
            self._give_up(request_id)
        elif self._held.pop(request_id, None) is None:
            return []
        return self._go_on()

    def loaded(self, adapter_id: int) -> list[Action]:
        """``Load`` has succeeded."""
        place = self._by_id[adapter_id]
        place.is_loaded = True
        self._settle(place)
        return [*(Admit(each, adapter_id) for each in place.requests), *self._go_on()]

    def failed(self, adapter_id: int) -> list[Action]:
        """``Load`` has failed."""
        place = self._by_id[adapter_id]
        for request_id in place.requests:
            del self._place_of[request_id]
        self._active_bytes -= place.nbytes
        self._remove(place)
        return [*(Refuse(each) for each in place.requests), *self._go_on()]

    def _settle(self, place: _Place) -> None:
        """Count ``place`` as inactive if it has become so."""
        if not place.is_active:
            self._inactive[place.digest] = place
            self._active_bytes -= place.nbytes

    def _remove(self, place: _Place) -> None:
        del self._places[place.digest], self._by_id[place.adapter_id]
        self._nbytes -= place.nbytes

    def _go_on(self) -> list[Action]:
        """Let begin what can."""
        actions: list[Action] = []
        self._let_join(actions)
        while (found := self._next()) is not None:
            self._give_room(*found, actions)
            self._let_join(actions)
        return actions

    def _let_join(self, actions: list[Action]) -> None:
        """Let held requests begin, or wait for room if their adapters are not active any more."""
        while self._held and not self._is_closed:
            request_id, held = self._held.popitem(last=False)
            self._begin_or_wait(request_id, held, actions)

    @property
    def _is_closed(self) -> bool:
        """Whether too many requests have passed those that wait for room."""
        return bool(self._turns) and self._overtakes >= MAX_OVERTAKES

    def _begin_or_wait(self, request_id: str, held: _Held, actions: list[Action]) -> None:
        place = self._places.get(held.digest)
        if place is None or not place.is_active:
            self._wait(request_id, held)
        else:
            self._overtakes = self._overtakes + 1 if self._turns else 0
            self._begin(request_id, place, actions)

    def _wait(self, request_id: str, held: _Held) -> None:
        self._wanted.setdefault(held.digest, _Wanted(held.nbytes)).requests[request_id] = held.tenant
        digests = self._turns.setdefault(held.tenant, OrderedDict())
        digests[held.digest] = digests.get(held.digest, 0) + 1
        self._digest_of[request_id] = held.digest

    def _give_up(self, request_id: str) -> None:
        """Let a request wait for room no more."""
        digest = self._digest_of.pop(request_id)
        wanted = self._wanted[digest]
        tenant = wanted.requests.pop(request_id)
        if not wanted.requests:
            del self._wanted[digest]
        digests = self._turns[tenant]
        digests[digest] -= 1
        if not digests[digest]:
            del digests[digest]
            if not digests:
                self._skips = 0 if tenant == next(iter(self._turns)) else self._skips
                del self._turns[tenant]

    def _next(self) -> tuple[str, str] | None:
        """Tenant and adapter that get room now. A tenant's adapters get it in order."""
        if self.num_active >= self._max_loras:
            return None
        left = self._max_bytes - self._active_bytes
        for tenant, digests in self._turns.items():
            digest = next(iter(digests))
            if self._wanted[digest].nbytes <= left:
                return tenant, digest
            if self._skips >= MAX_SKIPS:
                return None
        return None

    def _give_room(self, tenant: str, digest: str, actions: list[Action]) -> None:
        """Make an adapter active, and let all of its requests begin."""
        self._overtakes = 0
        self._skips = self._skips + 1 if tenant != next(iter(self._turns)) else 0
        self._turns.move_to_end(tenant)
        wanted = self._wanted[digest]
        if (place := self._inactive.pop(digest, None)) is None:
            place = self._make_place(digest, wanted.nbytes, actions)
        self._active_bytes += place.nbytes
        for request_id in list(wanted.requests):
            self._give_up(request_id)
            self._begin(request_id, place, actions)

    def _begin(self, request_id: str, place: _Place, actions: list[Action]) -> None:
        place.requests[request_id] = None
        self._place_of[request_id] = place
        if place.is_loaded:
            actions.append(Admit(request_id, place.adapter_id))

    def _make_place(self, digest: str, nbytes: int, actions: list[Action]) -> _Place:
        evicted = []
        while len(self._places) >= self._max_loaded or self._nbytes + nbytes > self._max_bytes:
            _, least = self._inactive.popitem(last=False)
            self._remove(least)
            evicted.append(least.adapter_id)
        place = self._places[digest] = _Place(next(self._ids), digest, nbytes)
        self._by_id[place.adapter_id] = place
        self._nbytes += nbytes
        actions.append(Load(place.adapter_id, digest, tuple(evicted)))
        return place
