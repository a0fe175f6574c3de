"""The waiting queue against deficit round-robin as the paper writes it, with a quantum of one token."""

from __future__ import annotations

from collections import OrderedDict, deque

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.scheduling.request_queue import WaitingQueue
from engine_core.sequence import Sequence, SequenceGroup, SequenceState

from .checked_executor import model_spec
from .harness import make_request

MODEL = model_spec(max_model_len=10_000)


class LiteralRoundRobin:
    """An active list of tenants; the one in front gets a token when it comes there, and serves what it can pay."""

    def __init__(self):
        self.active: OrderedDict[str, deque] = OrderedDict()
        self.deficit: dict[str, int] = {}
        self.visited = False

    def append(self, tenant, name, cost):
        self.deficit.setdefault(tenant, 0)
        self.active.setdefault(tenant, deque()).append((name, cost))

    def pop(self):
        while True:
            tenant, waiting = next(iter(self.active.items()))
            if not self.visited:
                self.deficit[tenant] += 1
                self.visited = True
            name, cost = waiting[0]
            if cost <= self.deficit[tenant]:
                waiting.popleft()
                self.deficit[tenant] -= cost
                if not waiting:
                    del self.active[tenant], self.deficit[tenant]
                    self.visited = False
                return name
            self.active.move_to_end(tenant)
            self.visited = False


def waiting(name, *, cost=10, tenant="", priority=0):
    group = SequenceGroup(make_request(name, 4), MODEL, 0.0, block_size=4, priority=priority, tenant=tenant)
    group.cost = cost
    return Sequence(0, group, 0, SequenceState.QUEUED)


def returning(name, *, admission, choice=0, priority=0):
    group = SequenceGroup(make_request(name, 4), MODEL, 0.0, block_size=4, priority=priority, tenant="")
    group.admission = admission
    return Sequence(0, group, choice, SequenceState.RUNNING)


def take(queue, passed=()):
    """Pop what the queue shows."""
    seq = queue.peek(passed)
    queue.pop(seq)
    return seq


def drain(queue):
    names = []
    while queue:
        names.append(take(queue).group.request.request_id)
    assert not queue
    assert queue.num_requests == queue.num_tokens == 0
    return names


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40)), max_size=40))
def test_order_is_that_of_deficit_round_robin(arrivals):
    queue, literal = WaitingQueue(), LiteralRoundRobin()
    for serial, (tenant, cost) in enumerate(arrivals):
        queue.append(waiting(str(serial), cost=cost, tenant=tenant))
        literal.append(tenant, str(serial), cost)
    assert drain(queue) == [literal.pop() for _ in arrivals]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("abcd"), st.integers(1, 120))), max_size=80))
def test_tenants_that_wait_together_are_served_alike_whoever_comes_and_goes(arrivals_and_pops):
    """The paper's bound: while both wait, two tenants' service differs by at most a quantum and two requests."""
    queue = WaitingQueue()
    backlog: dict[str, int] = {}
    served_together: dict[frozenset, dict[str, int]] = {}
    for serial, event in enumerate(arrivals_and_pops):
        if event is not None:
            tenant, cost = event
            queue.append(waiting(str(serial), cost=cost, tenant=tenant))
            backlog[tenant] = backlog.get(tenant, 0) + 1
        elif queue:
            seq = take(queue)
            tenant = seq.group.tenant
            for other in backlog:
                if other != tenant:
                    pair = served_together.setdefault(frozenset((tenant, other)), {tenant: 0, other: 0})
                    pair[tenant] += seq.group.cost
                    assert abs(pair[tenant] - pair[other]) <= 1 + 2 * 120
            backlog[tenant] -= 1
            if backlog[tenant] == 0:
                del backlog[tenant]
                served_together = {pair: sums for pair, sums in served_together.items() if tenant not in pair}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_removing_requests_leaves_the_others_each_served_once(data):
    queue = WaitingQueue()
    entries = [
        waiting(str(serial), cost=cost, tenant=tenant, priority=priority)
        for serial, (cost, tenant, priority) in enumerate(
            data.draw(st.lists(st.tuples(st.integers(1, 90), st.sampled_from("ab"), st.integers(0, 2)), max_size=30))
        )
    ]
    for seq in entries:
        queue.append(seq)
    removed = data.draw(st.lists(st.sampled_from(entries), unique=True)) if entries else []
    for seq in removed:
        queue.remove(seq)
    order = drain(queue)
    kept = [seq for seq in entries if seq not in removed]
    assert sorted(order) == sorted(seq.group.request.request_id for seq in kept)
    for tenant in "ab":
        for priority in range(3):
            mine = [
                s.group.request.request_id for s in kept if (s.group.tenant, s.group.priority) == (tenant, priority)
            ]
            assert [name for name in order if name in mine] == mine


def test_lower_priority_numbers_go_first_and_those_that_return_before_fresh_ones():
    queue = WaitingQueue()
    queue.append(waiting("fresh 1", priority=1))
    assert queue.peek().group.request.request_id == "fresh 1"
    queue.append(waiting("fresh 0"))
    queue.append(waiting("fresh -1", priority=-1))
    queue.put_back(returning("back late", admission=7))
    queue.put_back(returning("back early", admission=3))
    queue.put_back(returning("back 1", admission=1, priority=1))
    assert drain(queue) == ["fresh -1", "back early", "back late", "fresh 0", "back 1", "fresh 1"]


def test_a_tenant_keeps_what_it_saved_for_a_request_that_is_cancelled():
    queue = WaitingQueue()
    costly = waiting("costly", cost=100, tenant="saver")
    for seq in (costly, waiting("cheap", cost=40, tenant="saver"), *(waiting(str(at)) for at in range(9))):
        queue.append(seq)
    assert [take(queue).group.request.request_id for _ in range(5)] == ["0", "1", "2", "3", "4"]
    queue.remove(costly)
    assert drain(queue) == ["cheap", "5", "6", "7", "8"]


def test_finding_the_next_request_does_not_walk_through_rounds():
    queue = WaitingQueue()
    for serial in range(200):
        queue.append(waiting(f"{serial:03}", cost=10**12 + serial, tenant=str(serial)))
    assert drain(queue) == [f"{serial:03}" for serial in range(200)]


def test_sequences_that_return_are_removed_by_rank():
    queue = WaitingQueue()
    entries = [
        returning(f"r{admission}", admission=admission, choice=choice) for admission in (2, 1) for choice in (1, 0)
    ]
    for seq in entries:
        queue.put_back(seq)
    queue.remove(entries[0])
    queue.remove(entries[3])
    assert [(seq.group.admission, seq.choice) for seq in queue.returning()] == [(1, 1), (2, 0)]


def test_who_is_passed_over_keeps_its_turn_and_gains_nothing_by_the_rounds_it_misses():
    queue = WaitingQueue()
    for serial in range(20):
        queue.append(waiting(f"flood {serial}", cost=10, tenant="flood"))
    for serial in range(20):
        queue.append(waiting(f"other {serial}", cost=10, tenant="other"))
    queue.append(waiting("urgent flood", priority=-1, tenant="flood"))
    queue.put_back(returning("back", admission=1))
    assert take(queue, {"flood", ""}).group.request.request_id == "other 0"
    passed_over = [take(queue, {"flood", ""}).group.request.request_id for _ in range(10)]
    assert passed_over == [f"other {serial}" for serial in range(1, 11)]
    assert queue.peek({"flood", "", "other"}) is None
    order = drain(queue)
    assert order[:2] == ["urgent flood", "back"]
    assert [name.split()[0] for name in order[2:9]] == ["flood", *["flood", "other"] * 3], "it was due, and is once"


def test_a_tenant_that_was_passed_over_saves_nothing_while_it_was() -> None:
    """Also when its first request is cancelled, instead of served: its next one would jump the queue."""
    queue = WaitingQueue()
    first = waiting("first", cost=10, tenant="passed over")
    for seq in (first, waiting("second", cost=30, tenant="passed over")):
        queue.append(seq)
    for index in range(20):
        queue.append(waiting(f"{index}", cost=10, tenant="other"))
    for _ in range(12):
        take(queue, passed={"passed over"})
    queue.remove(first)
    assert drain(queue)[:3] == ["12", "second", "13"]
