"""The waiting queue: priority, then fairness across tenants, then arrival; and the deadlines of live requests."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from itertools import count, takewhile

from engine_core.request import Request
from engine_core.sequence import Sequence, SequenceGroup, SequenceState


def _rank(seq: Sequence) -> tuple[int, int, int]:
    return seq.rank


class _Tenant:
    """One tenant's waiting requests of one priority."""

    __slots__ = ("name", "order", "requests", "round")

    def __init__(self, name: str, joined: int, order: int) -> None:
        self.name = name
        self.round = joined
        """The round in which the tenant joined, or in which its last request was served."""
        self.order = order
        """Order of joining."""
        self.requests: OrderedDict[str, Sequence] = OrderedDict()
        """Waiting requests by id, never empty; a sequence stands for its request."""

    def head(self) -> Sequence:
        return next(iter(self.requests.values()))


def _turn(tenant: _Tenant) -> tuple[int, int]:
    """The round in which the tenant can pay its first request; ties in order of joining."""
    return tenant.round + tenant.head().group.cost, tenant.order


class _Level:
    """All waiting sequences of one priority: returning ones first, then tenants in deficit round-robin.

    The quantum is one token (Shreedhar and Varghese, SIGCOMM 1995): every round gives each waiting tenant one, and its
    first request is served when the tenant has saved its cost. So a tenant that joins later, or comes back, starts
    where the others are, and a flood waits behind itself. The round of a turn is computed, not iterated to.
    """

    __slots__ = ("_joined", "_round", "_tenants", "_turns", "returning")

    def __init__(self) -> None:
        self.returning: list[Sequence] = []
        """Returning sequences, in order of rank."""
        self._round = 0
        self._joined = count()
        self._tenants: dict[str, _Tenant] = {}
        self._turns: list[_Tenant] = []
        """Tenants with waiting requests, in order of turn."""

    def __bool__(self) -> bool:
        return bool(self.returning or self._turns)

    def append(self, seq: Sequence) -> None:
        name, request_id = seq.group.tenant, seq.group.request.request_id
        if (tenant := self._tenants.get(name)) is not None:
            tenant.requests[request_id] = seq
        else:
            tenant = self._tenants[name] = _Tenant(name, self._round, next(self._joined))
            tenant.requests[request_id] = seq
            insort(self._turns, tenant, key=_turn)

    def head(self, passed: Collection[str]) -> Sequence | None:
        for seq in self.returning:
            if seq.group.tenant not in passed:
                return seq
        return next((tenant.head() for tenant in self._turns if tenant.name not in passed), None)

    def remove(self, group: SequenceGroup, *, served: bool) -> None:
        """Remove a fresh request; if ``served``, its tenant saves for the next from the present round on.

        A tenant that was passed over gains nothing from the rounds in which its first request might have been served.
        """
        tenant = self._tenants[group.tenant]
        turn = _turn(tenant)
        del self._turns[bisect_left(self._turns, turn, key=_turn)]
        if served:
            self._round = tenant.round = max(self._round, turn[0])
        elif tenant.head().group is group:
            tenant.round += max(0, self._round - turn[0])
        del tenant.requests[group.request.request_id]
        if tenant.requests:
            insort(self._turns, tenant, key=_turn)
        else:
            del self._tenants[tenant.name]

    def replace(self, seq: Sequence) -> None:
        self._tenants[seq.group.tenant].requests[seq.group.request.request_id] = seq


class WaitingQueue:
    """All waiting sequences. ``num_requests`` and ``num_tokens`` count only fresh requests: those never admitted.

    A request whose inputs are pooled counts once, while one of them is fresh.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []
        self._num_of_tenant: Counter[str] = Counter()
        """Number of fresh requests by tenant, without zeros."""
        self.num_requests = 0
        self.num_tokens = 0
        """Tokens to compute until all fresh requests sample their first token."""

    def __bool__(self) -> bool:
        return bool(self._priorities)

    def returning(self) -> Iterator[Sequence]:
        """Sequences admitted before, or whose prompt another choice has computed."""
        for level in self._levels.values():
            yield from level.returning

    def has_room(self, tenant: str, limit: int) -> bool:
        """Whether one more request may wait: of ``limit`` places a tenant may hold at most as many as stay free."""
        return self._num_of_tenant.get(tenant, 0) < limit - self.num_requests

    def append(self, seq: Sequence) -> None:
        """Append an arriving request; ``seq`` stands for it."""
        self._level(seq.group.priority).append(seq)
        self.num_tokens += seq.num_tokens
        if seq.group.pooled is not None:
            whole = seq.group.pooled.whole
            whole.num_waiting += 1
            if whole.num_waiting > 1:
                return
        self._num_of_tenant[seq.group.tenant] += 1
        self.num_requests += 1

    def put_back(self, seq: Sequence) -> None:
        """Put a sequence of an admitted group back, at the front of its priority."""
        seq.state = SequenceState.RETURNING
        insort(self._level(seq.group.priority).returning, seq, key=_rank)

    def peek(self, passed: Collection[str] = ()) -> Sequence | None:
        """The sequence to admit next, the same until the queue changes. ``passed``: tenants to skip."""
        heads = (self._levels[priority].head(passed) for priority in self._priorities)
        return next((head for head in heads if head is not None), None)

    def pop(self, seq: Sequence) -> None:
        """Remove ``seq``, which ``peek`` returned, to admit it."""
        self._remove(seq, served=True)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence from any place in the queue."""
        self._remove(seq, served=False)

    def replace(self, old: Sequence, new: Sequence) -> None:
        """Let another choice stand for a fresh request, in the same place."""
        self._levels[new.group.priority].replace(new)
        self.num_tokens += new.num_tokens - old.num_tokens

    def _remove(self, seq: Sequence, *, served: bool) -> None:
        priority = seq.group.priority
        level = self._levels[priority]
        if seq.state is SequenceState.RETURNING:
            del level.returning[bisect_left(level.returning, seq.rank, key=_rank)]
        else:
            level.remove(seq.group, served=served)
            self.num_tokens -= seq.num_tokens
            self._count_out(seq.group)
        if not level:
            del self._levels[priority]
            del self._priorities[bisect_left(self._priorities, priority)]

    def _count_out(self, group: SequenceGroup) -> None:
        """``group`` waits no more, and its request neither, unless other inputs of it do."""
        if group.pooled is not None:
            whole = group.pooled.whole
            whole.num_waiting -= 1
            if whole.num_waiting:
                return
        self._num_of_tenant[group.tenant] -= 1
        if not self._num_of_tenant[group.tenant]:
            del self._num_of_tenant[group.tenant]
        self.num_requests -= 1

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            insort(self._priorities, priority)
        return level


class Deadlines:
    """The deadlines of live requests."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, str]] = []
        """Deadlines and request ids, in order."""

    def add(self, request: Request) -> None:
        if request.deadline is not None:
            insort(self._entries, (request.deadline, request.request_id))

    def remove(self, request: Request) -> None:
        if request.deadline is not None:
            del self._entries[bisect_left(self._entries, (request.deadline, request.request_id))]

    def expired(self, now: float) -> list[str]:
        """Requests whose deadline is not after ``now``, earliest first."""
        return [request_id for _, request_id in takewhile(lambda entry: entry[0] <= now, self._entries)]
