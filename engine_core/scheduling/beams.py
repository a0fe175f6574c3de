"""Beams in the scheduler: each is a sequence, planned like any other, until it has what the search needs of it.

A beam computes its tokens and the row after them. The result has the likeliest tokens there, its *candidates*; the
beam then waits until those of its search's other beams are there, too, in whichever steps that is. When all are, the
search (``engine_core.beam_search``) chooses how to go on. The first successor of each beam takes over its sequence and
blocks. Others are forked: they share the full blocks, and copy the one that is not full. If there is no room for that,
a successor waits in the queue and computes its tokens again, as after a preemption.

Beams that wait for another one must not keep the room that this one needs, for as long as other requests keep the rest:
if it finds no place or blocks in the queue, one of them gives up its own, but keeps its candidates. So does the last
beam that waits if nothing else can be planned. Like other sequences, forks leave the places free that their tenant must
leave to others.
"""

from __future__ import annotations

from collections import Counter

from engine_core.beam_search import Beam, Candidates, Successor
from engine_core.errors import InvalidRequestError
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.request import Finish, FinishReason, Request
from engine_core.scheduling.fairness import TenantShares
from engine_core.scheduling.lifecycle import Lifecycle
from engine_core.scheduling.outputs import end_of, ends, output_of_end, output_of_step
from engine_core.scheduling.stats import Counters
from engine_core.sequence import Sequence, SequenceGroup, SequenceState
from engine_core.step import Fork, SequenceOutput, StepPlan, StepResult


class Beams:
    """The searches of all requests that have one."""

    def __init__(
        self, kv: KVCacheManager, lifecycle: Lifecycle, counters: Counters, tenants: TenantShares, places: int
    ) -> None:
        """``places``: the most sequences that run at a time."""
        self._kv = kv
        self._lifecycle = lifecycle
        self._counters = counters
        self._tenants = tenants
        self._places = places
        self._copied: dict[int, int] = {}
        """Target → source of blocks to copy, until workers are told."""

    def check(self, request: Request) -> None:
        """Raise ``InvalidRequestError`` for a search with more beams than can run."""
        search = request.params.beam_search
        if search is not None and search.width > self._places:
            problem = f"is {search.width}; expected at most {self._places}, as many as run at a time (--max-num-seqs)"
            raise InvalidRequestError("beam_search.width", problem)

    def take_in(self, seq: Sequence, end: int, token_ids: list[int], result: StepResult) -> list[SequenceOutput]:
        """Process a step's results for a beam with ``end`` computed tokens; the outputs, if there are any."""
        group = seq.group
        assert group.beams is not None
        outputs = []
        if (news := output_of_step(seq, end, [], result)) is not None:
            if news.finish is not None:
                return self._end(group, news.finish)
            news.choice = group.beams.open[0]
            news.first_position = _num_resumed(group, news.choice)
            outputs.append(news)
        if token_ids:
            likeliest = result.logprobs[seq.seq_id][0]
            seq.candidates = Candidates(likeliest.top_ids, likeliest.top_logprobs)
            if all(group.members[beam.member].candidates is not None for beam in group.beams.beams):
                outputs += self._advance(group)
        return outputs

    def end(self, group: SequenceGroup, choice: int | None, finish_reason: FinishReason | None) -> bool:
        """End all choices of a request, or one, before its search is over; False if there is no such choice.

        ``finish_reason`` as in ``Scheduler.cancel``.
        """
        search = group.beams
        assert search is not None
        choices = search.open[:] if choice is None else [choice]
        if choice is not None and choice not in search.open:
            return False
        search.open = [each for each in search.open if each not in choices]
        if finish_reason is not None:
            finish = Finish(finish_reason)
            self._lifecycle.ended += [output_of_end(group, each, _num_resumed(group, each), finish) for each in choices]
        if not search.open:
            self._remove(group)
        return True

    def make_way(self, group: SequenceGroup | None = None) -> bool:
        """Take the place and blocks of a beam that waits for others of its search, which is that of ``group`` if given.

        False if none does.
        """
        if group is not None and group.beams is None:
            return False
        waiting = (seq for seq in reversed(self._lifecycle.running) if seq.candidates is not None)
        last = next((seq for seq in waiting if group is None or seq.group is group), None)
        if last is not None:
            self._lifecycle.preempt(last)
        return last is not None

    def with_changes(self, plan: StepPlan) -> StepPlan:
        """``plan``, which now tells workers how beams go on."""
        plan.forks.extend(self._lifecycle.forks.values())
        plan.copied_blocks.extend((source, target) for target, source in self._copied.items())
        self._lifecycle.forks.clear()
        self._copied.clear()
        return plan

    def _advance(self, group: SequenceGroup) -> list[SequenceOutput]:
        """Let the search of ``group`` go on, or end."""
        search, members = group.beams, group.members
        assert search is not None
        parents = [members[beam.member] for beam in search.beams]
        successors = search.advance(
            {seq.choice: seq.output for seq in parents},
            {seq.choice: seq.candidates for seq in parents if seq.candidates is not None},
            lambda token_id, length: ends(group, token_id, length),
        )
        if search.is_over:
            return self._results(group)
        heirs: dict[int, Successor] = {}
        for each in successors:
            heirs.setdefault(each.parent, each)
        # First what exists, so that it can be reused or removed.
        free = sorted(set(range(search.width)) - heirs.keys(), key=lambda number: number not in members)
        for number in free:
            if number in members:
                self._lifecycle.rest(members[number])
        search.beams = []
        places = self._num_places(group)
        for each in successors:
            number = each.parent if heirs[each.parent] is each else free.pop(0)
            search.beams.append(Beam(number, each.score))
            if number != each.parent:
                child = members.get(number) or self._lifecycle.add_beam(group, number)
                places -= self._fork(members[each.parent], child, each.token_id, has_place=places > 0)
        for number, each in heirs.items():
            self._go_on(members[number], each.token_id)
        for number in free:
            if number in members:
                self._lifecycle.remove(members[number])
        return []

    def _num_places(self, group: SequenceGroup) -> int:
        """How many forks of ``group`` may run at once, besides what runs already."""
        running, count = Counter(seq.group.tenant for seq in self._lifecycle.running), 0
        free = self._places - running.total()
        while count < free and free - count > self._tenants.places_kept(group.tenant, running):
            running[group.tenant] += 1
            count += 1
        return count

    def _fork(self, parent: Sequence, child: Sequence, token_id: int, *, has_place: bool) -> bool:
        """Let an idle ``child`` continue ``parent``, still unchanged, by ``token_id``; whether it runs at once."""
        child.output = [*parent.output, token_id]
        child.num_tokens = child.num_known
        child.candidates = None
        child.block_hashes = list(parent.block_hashes)
        copies = None
        if parent.state is SequenceState.RUNNING and has_place:
            copies = self._kv.fork(parent, child)
        if copies is None:
            self._lifecycle.wake(child)
            return False
        self._copied.update((target, source) for source, target in copies)
        num_shared = parent.num_computed // self._kv.block_size
        own = [table[num_shared:] for table in child.block_tables]
        self._lifecycle.forks[child.seq_id] = Fork(child.seq_id, parent.seq_id, token_id, num_shared, own)
        self._lifecycle.run(child)
        return True

    def _go_on(self, seq: Sequence, token_id: int) -> None:
        """Let a beam that keeps its blocks, if it has any, continue by ``token_id``."""
        seq.output.append(token_id)
        seq.num_tokens = seq.num_known
        seq.candidates = None
        if seq.state is SequenceState.RUNNING:
            self._lifecycle.forks[seq.seq_id] = Fork(seq.seq_id, seq.seq_id, token_id)
        else:
            self._lifecycle.wake(seq)

    def _results(self, group: SequenceGroup) -> list[SequenceOutput]:
        """The outputs of a search that is over."""
        search = group.beams
        assert search is not None
        outputs = []
        for choice in search.open:
            if choice >= len(search.ended):
                outputs.append(output_of_end(group, choice, _num_resumed(group, choice), _nothing(len(search.ended))))
                continue
            best, known = search.ended[choice], _num_resumed(group, choice)
            finish = end_of(group, best.token_ids)
            token_ids = list(best.token_ids[known:])
            self._counters.generated_tokens += len(token_ids)
            outputs.append(
                SequenceOutput(group.request.request_id, choice, known, token_ids, None, finish, beam_score=best.score)
            )
        self._remove(group)
        return outputs

    def _end(self, group: SequenceGroup, finish: Finish) -> list[SequenceOutput]:
        """End all choices of ``group`` with ``finish``, which one of its beams has met."""
        assert group.beams is not None
        outputs = [output_of_end(group, each, _num_resumed(group, each), finish) for each in group.beams.open]
        self._remove(group)
        return outputs

    def _remove(self, group: SequenceGroup) -> None:
        for seq in list(group.members.values()):
            self._lifecycle.remove(seq)


def _num_resumed(group: SequenceGroup, choice: int) -> int:
    """Tokens of a choice that are known from elsewhere: the search finds them again."""
    return len(group.request.resume.get(choice, ()))


def _nothing(count: int) -> Finish:
    problem = f"the beam search found only {count} outputs, as so few are allowed; expected a smaller n"
    return Finish(FinishReason.ERROR, error=problem, error_field="n")
