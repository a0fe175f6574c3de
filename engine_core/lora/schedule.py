"""When requests may begin that need an adapter: a state machine, whose owner loads adapters and admits requests.

An adapter is *active* while requests of it are under way or it is being loaded; at most ``max_loras`` are. Others stay
loaded, at most ``max_loaded`` of at most ``max_bytes`` together, until the least recently used ones make room. Requests
of active adapters begin at once. One whose adapter finds no room waits and holds up nobody; tenants get room in turn.
Lest others of active adapters pass by for ever, after ``MAX_OVERTAKES`` they wait, too, until the next one has room.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count

MAX_OVERTAKES = 256


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
class _Waiting:
    """A tenant's requests of one adapter that wait for room."""

    nbytes: int
    requests: dict[str, None] = field(default_factory=dict)


class AdapterSchedule:
    """Each method returns what the owner has to do, in this order."""

    def __init__(self, max_loras: int, max_loaded: int, max_bytes: int) -> None:
        self._max_loras = max_loras
        self._max_loaded = max_loaded
        self._max_bytes = max_bytes
        self._ids = count()
        self._places: OrderedDict[str, _Place] = OrderedDict()
        """By digest, the least recently used first."""
        self._place_of: dict[str, _Place] = {}
        """By request."""
        self._waiting: OrderedDict[str, OrderedDict[str, _Waiting]] = OrderedDict()
        """By tenant, whose turn is next first, and digest; none is empty."""
        self._tenant_of: dict[str, tuple[str, str]] = {}
        """Tenant and digest of each waiting request."""
        self._overtakes = 0
        """Requests that began since room was last found, while others waited for it."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room; not those whose adapter is being loaded."""
        return len(self._tenant_of)

    @property
    def num_loaded(self) -> int:
        """Adapters that are loaded, or being loaded."""
        return len(self._places)

    @property
    def num_active(self) -> int:
        return sum(place.is_active for place in self._places.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the adapters that are loaded, or being loaded."""
        return sum(place.nbytes for place in self._places.values())

    def holds(self, digest: str) -> bool:
        """Whether an adapter is loaded."""
        return (place := self._places.get(digest)) is not None and place.is_loaded

    def waits(self, request_id: str) -> bool:
        """Whether a request waits for room."""
        return request_id in self._tenant_of

    def add(self, request_id: str, tenant: str, digest: str, nbytes: int) -> list[Action]:
        """A request of the adapter with this ``digest``, which takes ``nbytes``; its id is new."""
        if nbytes > self._max_bytes:
            return [Refuse(request_id)]
        groups = self._waiting.setdefault(tenant, OrderedDict())
        groups.setdefault(digest, _Waiting(nbytes)).requests[request_id] = None
        self._tenant_of[request_id] = tenant, digest
        return self._go_on()

    def end(self, request_id: str) -> list[Action]:
        """A request has ended, or waits no longer. Idempotent."""
        if (place := self._place_of.pop(request_id, None)) is not None:
            del place.requests[request_id]
        elif request_id in self._tenant_of:
            self._remove_waiting(request_id)
        else:
            return []
        return self._go_on()

    def loaded(self, adapter_id: int) -> list[Action]:
        """``Load`` has succeeded."""
        place = self._place(adapter_id)
        place.is_loaded = True
        return [*(Admit(each, adapter_id) for each in place.requests), *self._go_on()]

    def failed(self, adapter_id: int) -> list[Action]:
        """``Load`` has failed."""
        place = self._place(adapter_id)
        del self._places[place.digest]
        for request_id in place.requests:
            del self._place_of[request_id]
        return [*(Refuse(each) for each in place.requests), *self._go_on()]

    def _place(self, adapter_id: int) -> _Place:
        return next(each for each in self._places.values() if each.adapter_id == adapter_id)

    def _go_on(self) -> list[Action]:
        """Let begin what can."""
        actions: list[Action] = []
        while (found := self._next()) is not None:
            tenant, digest = found
            place = self._places.get(digest)
            if place is None or not place.is_active:
                self._overtakes = 0
                self._waiting.move_to_end(tenant)
            elif self._waits_for_room():
                self._overtakes += 1
            if place is None:
                place = self._make_place(digest, self._waiting[tenant][digest].nbytes, actions)
            self._places.move_to_end(digest)
            request_id = next(iter(self._waiting[tenant][digest].requests))
            self._remove_waiting(request_id)
            place.requests[request_id] = None
            self._place_of[request_id] = place
            if place.is_loaded:
                actions.append(Admit(request_id, place.adapter_id))
        return actions

    def _next(self) -> tuple[str, str] | None:
        """Tenant and adapter of the next request that may begin: one that needs room, if there is, else any other."""
        active = [each for each in self._places.values() if each.is_active]
        left = self._max_bytes - sum(each.nbytes for each in active) if len(active) < self._max_loras else None
        joining, room_is_wanted = None, False
        for tenant, groups in self._waiting.items():
            for digest, group in groups.items():
                place = self._places.get(digest)
                if place is None or not place.is_active:
                    if left is not None and group.nbytes <= left:
                        return tenant, digest
                    room_is_wanted = True
                elif joining is None:
                    joining = tenant, digest
        if not room_is_wanted:
            self._overtakes = 0
        return None if self._overtakes >= MAX_OVERTAKES else joining

    def _waits_for_room(self) -> bool:
        """Whether a request waits whose adapter is not active."""
        return any(
            (place := self._places.get(digest)) is None or not place.is_active
            for groups in self._waiting.values()
            for digest in groups
        )

    def _make_place(self, digest: str, nbytes: int, actions: list[Action]) -> _Place:
        evicted = []
        inactive = [each for each in self._places.values() if not each.is_active]
        while len(self._places) >= self._max_loaded or self.nbytes + nbytes > self._max_bytes:
            least = inactive.pop(0)
            del self._places[least.digest]
            evicted.append(least.adapter_id)
        place = self._places[digest] = _Place(next(self._ids), digest, nbytes)
        actions.append(Load(place.adapter_id, digest, tuple(evicted)))
        return place

    def _remove_waiting(self, request_id: str) -> None:
        tenant, digest = self._tenant_of.pop(request_id)
        group = self._waiting[tenant][digest]
        del group.requests[request_id]
        if not group.requests:
            del self._waiting[tenant][digest]
            if not self._waiting[tenant]:
                del self._waiting[tenant]
