"""State transitions of sequences. All keep queue, blocks, groups and workers consistent.

::

    add ──▶ QUEUED ──start──▶ RUNNING ───▶ ENDED
                               │   ▲
                       preempt ▼   │ start
    siblings ──▶ PENDING ⇄ RETURNING

Siblings are the other choices of a request whose first choice was started; they are PENDING until it has computed the
prompt. Beams are forked from running ones instead. A beam that is preempted while it waits for others is IDLE, until
its search goes on with it or without it. ``end`` ends a sequence in any state. The scheduler decides when to make which
transition.
"""

from __future__ import annotations

from bisect import insort
from itertools import count

from engine_core.config import ModelSpec
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.pooling.inputs import InputRequest, LiveInputs, requests_of
from engine_core.pooling.params import PoolingRequest
from engine_core.request import Finish, Request
from engine_core.scheduling.encoder_cache import EncoderCacheManager
from engine_core.scheduling.outputs import end_of, output_of_end
from engine_core.scheduling.request_queue import Deadlines, WaitingQueue
from engine_core.scheduling.speculation import Speculation
from engine_core.scheduling.stats import Counters
from engine_core.scheduling.step_in_flight import StepInFlight
from engine_core.sequence import NEVER, Sequence, SequenceGroup, SequenceState
from engine_core.step import Fork, SequenceOutput


class Lifecycle:
    """All live requests. The scheduler reads its attributes, updates ``in_flight`` and empties what it has told."""

    def __init__(
        self,
        kv: KVCacheManager,
        queue: WaitingQueue,
        model: ModelSpec,
        counters: Counters,
        encoder: EncoderCacheManager | None = None,
        speculation: Speculation | None = None,
        *,
        fair: bool,
    ) -> None:
        """``fair``: order requests by priority and tenant; otherwise by arrival alone. ``encoder``: None if the model
        takes no pictures. ``speculation``: None if no drafter proposes tokens.
        """
        self.groups: dict[str, SequenceGroup] = {}
        self.inputs: dict[str, LiveInputs] = {}
        """Inputs that are pooled, by the id of their request; each is a group of its own."""
        self.running: list[Sequence] = []
        """Running sequences, in order of rank."""
        self.in_flight: dict[int, StepInFlight] = {}
        """Steps in flight by step id, oldest first."""
        self.released: list[int] = []
        """seq_ids that workers must forget, until they are told."""
        self.forks: dict[int, Fork] = {}
        """By seq_id: how beams go on, until workers are told."""
        self.started: list[str] = []
        """Requests that the next step begins to compute, for the first time or again, until they are reported."""
        self.ended: list[SequenceOutput] = []
        """Ends that no step caused, until they are reported."""
        self.deadlines = Deadlines()
        self.num_choices = 0
        """Live choices, running or not."""
        self._kv = kv
        self._queue = queue
        self._model = model
        self._counters = counters
        self._encoder = encoder
        self._speculation = speculation
        self._fair = fair
        self._holding: dict[str, SequenceGroup] = {}
        """Groups that hold their prompt's blocks for waiting choices."""
        self._seq_ids = count()
        self._admissions = count()

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Choices whose resumed output is already complete end at once."""
        group = SequenceGroup(
            request,
            self._model,
            now,
            self._kv.block_size,
            priority=request.priority if self._fair else 0,
            tenant=request.tenant if self._fair else "",
        )
        if group.beams is not None:
            group.unstarted.append(0)
        for choice in (sorted(request.resume) or range(request.params.n)) if group.beams is None else ():
            output = request.resume.get(choice)
            finish = end_of(group, output) if output else None
            if output and finish:
                self.ended.append(output_of_end(group, choice, len(output), finish))
            else:
                group.unstarted.append(choice)
        if not group.unstarted:
            return
        num_outputs = len(group.unstarted) if group.beams is None else group.beams.width
        group.cost = group.num_prompt_tokens + num_outputs * group.max_output
        self.num_choices += len(group.unstarted)
        self.groups[request.request_id] = group
        self.deadlines.add(request)
        self._queue.append(self._next_choice(group, SequenceState.QUEUED))

    def add_inputs(self, request: PoolingRequest, now: float) -> None:
        """Queue all inputs of a request."""
        live = self.inputs[request.request_id] = LiveInputs(request.request_id)
        for each in requests_of(request, live):
            self.add(each, now)

    def start(self, seq: Sequence, now: float) -> None:
        """Let ``seq`` run, which was popped from the queue and has its blocks."""
        group = seq.group
        if group.admission is None:
            self._start_group(group, seq, now)
        seq.state = SequenceState.RUNNING
        group.num_running += 1
        insort(self.running, seq, key=lambda each: each.rank)
        if group.scores_prompt:
            group.num_prompt_logprobs = 0  # this leader recomputes its predecessor's scores
        # With windows, a choice may return after the running choices have lost blocks of the prompt. It then computes
        # the prompt for itself only, so that all choices that share blocks share the same ones.
        if group.shared_blocks is None and group.num_running == 1:
            group.leader = seq
            if group.num_waiting:
                self._kv.keep_source(seq)
            if seq.num_computed >= group.share_at:
                self._share_prompt(seq)
        self._watch(seq)
        self._clean_up(group)

    def wait_for_leader(self, seq: Sequence) -> None:
        """Let ``seq``, popped from the queue, wait until its group's leader has computed the prompt."""
        seq.state = SequenceState.PENDING
        seq.group.pending.append(seq)

    def advance(self, seq: Sequence, num_computed: int) -> None:
        """Publish and free blocks of ``seq``, which has reached its ``watch_at``, and share its prompt if it leads."""
        self._kv.publish(seq, num_computed)
        if seq.group.leader is seq and num_computed >= seq.group.share_at:
            self._share_prompt(seq)
        # A leader that has not shared its prompt keeps the blocks that others will read.
        read_by_all = seq.group.num_shared_blocks * self._kv.block_size if seq.group.leader is seq else num_computed
        self._kv.release_skipped_blocks(seq, min(num_computed, read_by_all))
        self._watch(seq)

    def preempt(self, seq: Sequence) -> None:
        """Preempt a running ``seq``: it loses its blocks, and waits at the front of its priority to be recomputed."""
        group = seq.group
        if group.num_running > 1:
            self._hold_prompt_of(group)
        self._stop_running(seq)
        if seq.candidates is None:
            self._queue.put_back(seq)
        else:
            seq.state = SequenceState.IDLE
        self._counters.preemptions += 1

    def add_beam(self, group: SequenceGroup, number: int) -> Sequence:
        """A further beam of an admitted ``group``, idle."""
        self.num_choices += 1
        seq = group.members[number] = Sequence(next(self._seq_ids), group, number, SequenceState.IDLE)
        return seq

    def rest(self, seq: Sequence) -> None:
        """Let a beam be idle that runs, or is."""
        if seq.state is SequenceState.RUNNING:
            self._stop_running(seq)
        seq.state = SequenceState.IDLE

    def wake(self, seq: Sequence) -> None:
        """Let an idle beam wait to compute its tokens again."""
        self._hold_prompt_of(seq.group)
        self._queue.put_back(seq)

    def run(self, seq: Sequence) -> None:
        """Let an idle beam run, which has its blocks."""
        seq.state = SequenceState.RUNNING
        seq.group.num_running += 1
        insort(self.running, seq, key=lambda each: each.rank)
        self._watch(seq)
        self._clean_up(seq.group)

    def end(self, group: SequenceGroup, choice: int, finish: Finish | None) -> bool:
        """End a choice in any state, reporting ``finish`` if given; False if it is not live."""
        seq = group.members.get(choice)
        drafts = (0, 0)
        if seq is not None:
            if self._speculation is not None:
                drafts = self._speculation.totals(seq)
            self.remove(seq)
            position = len(seq.output)
        elif choice in group.unstarted:
            group.unstarted.remove(choice)
            self.num_choices -= 1
            position = len(group.request.resume.get(choice, ()))
        else:
            return False
        if finish is not None:
            self.ended.append(output_of_end(group, choice, position, finish, drafts))
        return True

    def remove(self, seq: Sequence) -> None:
        """Remove ``seq``, which has ended, from the structures of its state."""
        group = seq.group
        del group.members[seq.choice]
        self.num_choices -= 1
        if seq.state is SequenceState.RUNNING:
            self._stop_running(seq)
        elif seq.state is SequenceState.PENDING:
            group.pending.remove(seq)
        elif seq.state is SequenceState.QUEUED and group.unstarted:
            self._queue.replace(seq, self._next_choice(group, SequenceState.QUEUED))
        elif seq.state is not SequenceState.IDLE:
            self._queue.remove(seq)
        seq.state = SequenceState.ENDED
        if self._speculation is not None:
            self._speculation.end(seq)
        self._clean_up(group)

    def drop_idle_prompt(self, keep: SequenceGroup | None = None) -> bool:
        """Release the held prompt of the lowest-ranked group that runs no choice, ``keep`` excepted; False if none.

        The group's choices recompute their prompt.
        """
        idle = [group for group in self._holding.values() if group.num_running == 0 and group is not keep]
        if not idle:
            return False
        self._drop_prompt(max(idle, key=lambda group: (group.priority, group.admission)))
        return True

    def _start_group(self, group: SequenceGroup, first: Sequence, now: float) -> None:
        group.admission = next(self._admissions)
        first.rank = (group.priority, group.admission, first.choice)
        while group.unstarted:
            group.pending.append(self._next_choice(group, SequenceState.PENDING))
        group.queue_seconds = now - group.queued_at
        if group.pooled is None or not group.pooled.whole.is_started:
            self.started.append(group.request_id)
        if group.pooled is not None:
            group.pooled.whole.is_started = True
        group.cached_tokens = min(first.num_computed, group.num_prompt_tokens)
        if self._kv.looks_up_prefix(group):
            self._counters.prefix_query_tokens += first.num_tokens
            self._counters.prefix_hit_tokens += first.num_computed

    def _next_choice(self, group: SequenceGroup, state: SequenceState) -> Sequence:
        choice = group.unstarted.pop(0)
        seq = group.members[choice] = Sequence(next(self._seq_ids), group, choice, state)
        return seq

    def _stop_running(self, seq: Sequence) -> None:
        """Remove ``seq`` from the running list and from the steps in flight, and release its blocks."""
        group = seq.group
        self.running.remove(seq)
        group.num_running -= 1
        if group.leader is seq:
            self._release_followers(group)
        fork = self.forks.pop(seq.seq_id, None)
        if fork is None or fork.parent == seq.seq_id:  # else workers do not know it
            self.released.append(seq.seq_id)
        if self._encoder is not None:
            self._encoder.stop(seq)
        last = self.in_flight.get(seq.last_step) if seq.last_step is not None else None
        slots = self._kv.stop_states(seq)
        if last is None:
            self._kv.release(seq.block_tables)
            self._kv.release_states(slots)
        else:
            last.deferred.append(seq.block_tables)
            last.deferred_states += slots
            for step in self.in_flight.values():
                step.dropped.add(seq.seq_id)
        seq.block_tables = []
        seq.first_blocks = []
        seq.num_computed = 0
        seq.drafts = []
        seq.is_proposed = seq.is_drafted = False
        seq.num_tokens = group.num_prompt_tokens + len(seq.output)

    def _watch(self, seq: Sequence) -> None:
        sharing = seq.group.share_at if seq.group.leader is seq else NEVER
        seq.watch_at = min(self._kv.next_change(seq), sharing)

    def _share_prompt(self, leader: Sequence) -> None:
        """Let choices start that wait for the prompt, which the leader has computed."""
        if leader.group.num_waiting:
            self._hold_prompt(leader)
        self._release_followers(leader.group)

    def _release_followers(self, group: SequenceGroup) -> None:
        """Move choices that waited for the group's leader to the front of the queue."""
        group.leader = None
        if group.shared_blocks is None:
            self._kv.drop_prompt(group)  # A state may be held already.
        for seq in group.pending:
            self._queue.put_back(seq)
        group.pending.clear()

    def _hold_prompt_of(self, group: SequenceGroup) -> None:
        """Let choices that wait start from the prompt of one that runs, if one has computed it.

        With windows it may have lost blocks of the prompt.
        """
        if group.shared_blocks is not None or self._kv.has_windows:
            return
        for seq in group.members.values():
            if seq.state is SequenceState.RUNNING and seq.num_computed >= group.share_at:
                self._hold_prompt(seq)
                return

    def _hold_prompt(self, seq: Sequence) -> None:
        if self._kv.hold_prompt(seq.group, seq):
            self._holding[seq.group.request.request_id] = seq.group

    def _drop_prompt(self, group: SequenceGroup) -> None:
        self._kv.drop_prompt(group)
        self._holding.pop(group.request.request_id, None)

    def _clean_up(self, group: SequenceGroup) -> None:
        """After a choice started or ended, release shared state that no choice needs any more."""
        if group.num_waiting == 0:
            self._drop_prompt(group)
            if not group.members:
                self.deadlines.remove(group.request)
                del self.groups[group.request.request_id]
                if group.pooled is not None:
                    self._forget_input(group.pooled)

    def _forget_input(self, ended: InputRequest) -> None:
        whole = ended.whole
        del whole.ids[ended.choice]
        if not whole.ids:
            del self.inputs[whole.request_id]
