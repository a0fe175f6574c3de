"""The waiting queue: priority, then fairness across tenants, then arrival; and the deadlines of live requests."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from engine_core.sequence import Sequence, SequenceGroup, SequenceState


def _rank(seq: Sequence) -> tuple[int, int, int]:
    return seq.rank


class _Tenant:
    """One tenant's requests of one priority. ``turn`` orders tenants: (round in which it can pay, order of joining)."""

    __slots__ = ("deficit", "groups", "name", "round", "turn")

    def __init__(self, name: str, last_round: int, order: int) -> None:
        self.name = name
        self.groups: OrderedDict[str, Sequence] = OrderedDict()
        """Waiting requests keyed by request id; a sequence stands for its group."""
        self.deficit = 0
        self.round = last_round
        """The last round whose quantum the tenant got."""
        self.turn = (last_round, order)

    def head(self) -> Sequence:
        return next(iter(self.groups.values()))


def _turn(tenant: _Tenant) -> tuple[int, int]:
    return tenant.turn


class _Level:
    """All waiting sequences of one priority."""

    __slots__ = ("_left", "_orders", "_quantum", "_round", "_tenants", "_turns", "returning")

    def __init__(self, quantum: int) -> None:
        self.returning: list[Sequence] = []
        """Returning sequences, in order of rank."""
        self._quantum = quantum
        self._round = 0
        self._orders = count()
        self._tenants: dict[str, _Tenant] = {}
        self._turns: list[_Tenant] = []
        """Tenants with waiting requests, in order of turn."""
        self._left: set[str] = set()
        """Tenants that got this round's quantum and have no waiting requests any more."""

    def __bool__(self) -> bool:
        return bool(self.returning or self._turns)

    def append(self, seq: Sequence) -> None:
        name = seq.group.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            # A tenant that leaves and comes back gets no second quantum in the same round.
            last_round = self._round if name in self._left else self._round - 1
            tenant = self._tenants[name] = _Tenant(name, last_round, next(self._orders))
            tenant.groups[seq.group.request.request_id] = seq
            self._schedule(tenant)
        else:
            tenant.groups[seq.group.request.request_id] = seq

    def head(self, passed: Collection[str]) -> Sequence | None:
        for seq in self.returning:
            if seq.group.tenant not in passed:
                return seq
        return next((tenant.head() for tenant in self._turns if tenant.name not in passed), None)

    def pop_fresh(self, name: str, passed: Collection[str]) -> None:
        """Remove a tenant's first request and charge it; tenants in ``passed`` get no quantum for rounds they miss."""
        tenant = self._tenants[name]
        self._unschedule(tenant)
        _, seq = tenant.groups.popitem(last=False)
        if tenant.turn[0] > self._round:
            self._round = tenant.turn[0]
            self._left.clear()
            for other in passed:
                self._postpone(other)
        tenant.deficit += (self._round - tenant.round) * self._quantum - seq.group.cost
        tenant.round = self._round
        self._schedule(tenant)

    def remove_returning(self, seq: Sequence) -> None:
        del self.returning[bisect_left(self.returning, seq.rank, key=_rank)]

    def remove(self, group: SequenceGroup) -> None:
        tenant = self._tenants[group.tenant]
        self._unschedule(tenant)
        del tenant.groups[group.request.request_id]
        self._schedule(tenant)

    def replace(self, seq: Sequence) -> None:
        self._tenants[seq.group.tenant].groups[seq.group.request.request_id] = seq

    def _postpone(self, name: str) -> None:
        """If the tenant's round has passed, move the tenant to the current round, with the deficit that it had then."""
        tenant = self._tenants.get(name)
        if tenant is not None and (missed := self._round - tenant.turn[0]) > 0:
            self._unschedule(tenant)
            tenant.round += missed
            tenant.turn = (self._round, tenant.turn[1])
            insort(self._turns, tenant, key=_turn)

    def _unschedule(self, tenant: _Tenant) -> None:
        del self._turns[bisect_left(self._turns, tenant.turn, key=_turn)]

    def _schedule(self, tenant: _Tenant) -> None:
        """Insert a tenant at its turn: the round in which it can pay for its first request."""
        if not tenant.groups:
            del self._tenants[tenant.name]
            if tenant.round == self._round:
                self._left.add(tenant.name)
            return
        missing = tenant.head().group.cost - tenant.deficit
        rounds = max(0, -(-missing // self._quantum))
        tenant.turn = (tenant.round + rounds, tenant.turn[1])
        insort(self._turns, tenant, key=_turn)


class WaitingQueue:
    """All waiting sequences. ``num_requests`` and ``num_tokens`` count fresh requests only: those never admitted."""

    def __init__(self, quantum: int) -> None:
        """``quantum``: tokens per tenant and round."""
        self._quantum = quantum
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []
        self._num_of_tenant: Counter[str] = Counter()
        """Number of fresh requests, keyed by tenant; only tenants that have any."""
        self.num_requests = 0
        self.num_tokens = 0
        """Tokens to compute until each of the fresh requests samples its first one."""

    def __bool__(self) -> bool:
        return bool(self._priorities)

    def returning(self) -> Iterator[Sequence]:
        """Sequences that were admitted before, or whose prompt another choice has computed."""
        for level in self._levels.values():
            yield from level.returning

    def has_room(self, tenant: str, limit: int) -> bool:
        """Whether one more request may wait: of ``limit`` places a tenant may hold at most as many as stay free."""
        return self._num_of_tenant.get(tenant, 0) < limit - self.num_requests

    def append(self, seq: Sequence) -> None:
        """Append an arriving request; ``seq`` stands for it."""
        self._level(seq.group.priority).append(seq)
        self._num_of_tenant[seq.group.tenant] += 1
        self.num_requests += 1
        self.num_tokens += seq.num_tokens

    def put_back(self, seq: Sequence) -> None:
        """Put a sequence of an admitted group back, at the front of its priority."""
        seq.state = SequenceState.RETURNING
        insort(self._level(seq.group.priority).returning, seq, key=_rank)

    def peek(self, passed: Collection[str] = ()) -> Sequence | None:
        """The sequence to admit next. The answer stays the same until the queue changes.

        ``passed``: tenants to skip, so that others go first.
        """
        heads = (self._levels[priority].head(passed) for priority in self._priorities)
        return next((head for head in heads if head is not None), None)

    def pop(self, seq: Sequence, passed: Collection[str] = ()) -> None:
        """Remove ``seq``, which ``peek`` returned."""
        priority = seq.group.priority
        level = self._levels[priority]
        if seq.state is SequenceState.RETURNING:
            level.remove_returning(seq)
        else:
            level.pop_fresh(seq.group.tenant, passed)
            self._forget(seq)
        self._tidy(priority)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence from any place in the queue."""
        priority = seq.group.priority
        level = self._levels[priority]
        if seq.state is SequenceState.RETURNING:
            level.remove_returning(seq)
        else:
            level.remove(seq.group)
            self._forget(seq)
        self._tidy(priority)

    def replace(self, old: Sequence, new: Sequence) -> None:
        """Let another choice stand for a fresh request, in the same place."""
        self._levels[new.group.priority].replace(new)
        self.num_tokens += new.num_tokens - old.num_tokens

    def _forget(self, seq: Sequence) -> None:
        tenant = seq.group.tenant
        self._num_of_tenant[tenant] -= 1
        if not self._num_of_tenant[tenant]:
            del self._num_of_tenant[tenant]
        self.num_requests -= 1
        self.num_tokens -= seq.num_tokens

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level(self._quantum)
            insort(self._priorities, priority)
        return level

    def _tidy(self, priority: int) -> None:
        if not self._levels[priority]:
            del self._levels[priority]
            del self._priorities[bisect_left(self._priorities, priority)]


class DeadlineHeap:
    """The deadlines of live groups, as a heap.

    Entries of ended groups (without the groups) stay in it until they reach the top or outnumber the others.
    """

    __slots__ = ("_heap", "_live", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, SequenceGroup] = {}
        """Live groups keyed by the number of their entry."""
        self._serial = count()

    def add(self, group: SequenceGroup) -> None:
        """Watch a group's deadline, if it has one."""
        if group.request.deadline is not None:
            group.deadline_entry = next(self._serial)
            self._live[group.deadline_entry] = group
            heappush(self._heap, (group.request.deadline, group.deadline_entry))

    def discard(self, group: SequenceGroup) -> None:
        """Stop watching a group."""
        if group.deadline_entry is None:
            return
        self._live.pop(group.deadline_entry, None)
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapify(self._heap)

    def pop_expired(self, now: float) -> list[SequenceGroup]:
        """Remove and return the groups whose deadline is not after ``now``; the caller ends each."""
        expired = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            group = self._live.pop(heappop(heap)[1], None)
            if group is not None:
                expired.append(group)
        return expired
