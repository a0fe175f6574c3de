"""The scheduler: decides which sequences compute how many tokens in the next step.

There are no prefill and decode phases: every sequence has a number of computed tokens that catches up with its total
tokens, and all sequences share a step's token budget. Running sequences come first, in order of rank, then waiting
ones. When blocks run out, the lowest-ranked running sequence is preempted: it loses its blocks, and later recomputes
them.

``schedule`` and ``update`` alternate, but more steps may be scheduled before earlier results arrive, as long as results
arrive in order: a pending token already has its place, and workers know the token by then. Late results have no visible
effect: results for a sequence that ended or was preempted meanwhile are ignored, its blocks are released with the last
step that uses them, and blocks are published only after the results of the step that filled them.

A result may bring drafts: tokens that will probably follow. With drafts a step may sample several tokens of a sequence;
``drafting`` decides how many. Rejected drafts are rolled back as soon as the results arrive, before any block is
published. Until then the sequence's end is unknown, so no other step computes it. Nor are drafts computed in a step
that is planned while a token of their sequence is pending: if drafts follow the pending token, the sequence waits for
it, because the step after computes them together and so makes up for the missed step. Where drafts of a drafter are
worth more than overlapping steps, no step is planned ahead at all: sequences that kept missing steps would lose more
than they gain.

With several stages (pipeline parallelism) a sequence is not planned while it has a pending token, because the first
stage would need the token before the last stage has sampled it. All stages are busy only while each has a step, so a
step takes at most its part of the decoding sequences, those that have waited longest. Prompts are not held back: a
chunk needs nothing of the chunk before it but its keys and values, which every stage computes in the same order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count

from engine_core.config import (
    CacheConfig,
    ModelSpec,
    SchedulerConfig,
    encoder_cache_tokens,
    encoder_portion_tokens,
    encoder_step_tokens,
    require_step_for_pictures,
)
from engine_core.errors import ExecutorError, InvalidRequestError, OutOfMemoryError, QueueFullError
from engine_core.kv_cache.manager import KVCacheManager, Prefix
from engine_core.kv_cache.state_slots import StateUse
from engine_core.kv_cache_interface import SPARE_SLOTS, KVCacheConfig, blocks_of_longest
from engine_core.pooling.params import PoolingRequest
from engine_core.request import Finish, FinishReason, Request
from engine_core.scheduling import drafting
from engine_core.scheduling.beams import Beams
from engine_core.scheduling.encoder_cache import EncoderCacheManager
from engine_core.scheduling.fairness import TenantShares
from engine_core.scheduling.lifecycle import Lifecycle
from engine_core.scheduling.outputs import output_of_step
from engine_core.scheduling.pacing import Pacing
from engine_core.scheduling.request_queue import WaitingQueue
from engine_core.scheduling.speculation import Offer, Speculation
from engine_core.scheduling.stats import Counters, SchedulerStats
from engine_core.scheduling.step_in_flight import StepInFlight
from engine_core.sequence import BlockTables, Sequence, SequenceState
from engine_core.speculation import ASSUMED_STEP_TIMES, StepTimes
from engine_core.step import SequenceOutput, StepPlan, StepResult


class Scheduler:
    """Plans steps for validated requests. Used from one thread."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        kv_cache_config: KVCacheConfig,
        model: ModelSpec,
        clock: Callable[[], float] = time.monotonic,
        cache_identity: Iterable[bytes] = (),
        stages: int = 1,
        step_times: StepTimes = ASSUMED_STEP_TIMES,
    ) -> None:
        """Deadlines are times of ``clock``; ``cache_identity`` identifies the model and numerics that compute blocks.

        ``stages``: number that a step goes through; with several, no sequence with a pending token is planned.
        ``step_times``: what drafters' drafts cost. Raises ``ConfigError`` and ``OutOfMemoryError``.
        """
        _check_limits(config, kv_cache_config, model)
        self._config = config
        self._clock = clock
        self._stages = stages
        self._counters = Counters()
        self._kv = KVCacheManager(
            kv_cache_config,
            step_tokens=config.max_num_batched_tokens,
            prefix_caching=cache.enable_prefix_caching,
            identity=tuple(cache_identity),
        )
        self._queue = WaitingQueue()
        budget = config.max_num_batched_tokens
        # Without chunked prefill, each prompt has to fit into a step.
        prompt_tokens = max(1, budget // 4) if config.enable_chunked_prefill else budget
        self._places = kv_cache_config.most_running(config.max_num_seqs)
        self._tenants = TenantShares(self._places, kv_cache_config.num_blocks, prompt_tokens)
        self._fair = config.policy == "priority"
        self._encoder = _encoder_of(config, cache, model, self._counters)
        speculation = config.speculation
        self._speculation = None if speculation is None else Speculation(speculation, step_times, self._counters)
        self._lifecycle = Lifecycle(
            self._kv, self._queue, model, self._counters, self._encoder, self._speculation, fair=self._fair
        )
        self._beams = Beams(self._kv, self._lifecycle, self._counters, self._tenants, self._places)
        self._step_ids = count()
        self._pacing = Pacing()

    def check(self, request: Request) -> None:
        """Raise ``InvalidRequestError`` for a request with more beams than can run."""
        self._beams.check(request)

    def add(self, request: Request | PoolingRequest) -> None:
        """Queue a request. Raises ``QueueFullError``, or ``InvalidRequestError`` if its id is live."""
        if request.request_id in self._lifecycle.groups or request.request_id in self._lifecycle.inputs:
            problem = f"{request.request_id!r} is in use; expected an id that no live request has"
            raise InvalidRequestError("request_id", problem)
        limit, waiting = self._config.max_num_queued_reqs, self._queue.num_requests
        if waiting >= limit:
            raise QueueFullError(f"limit of {limit} waiting requests (max_num_queued_reqs) reached; retry later")
        if self._fair and not self._queue.has_room(request.tenant, limit):
            raise QueueFullError(
                "this tenant has too many requests waiting; a tenant may have no more than the queue has free places, "
                f"now {limit - waiting} of {limit} (max_num_queued_reqs); retry later"
            )
        now = self._clock()
        if isinstance(request, PoolingRequest):
            self._lifecycle.add_inputs(request, now)
        else:
            self._lifecycle.add(request, now)
        if self._fair:
            self._tenants.came(request.tenant, now)

    def cancel(
        self, request_id: str, choice: int | None = None, finish_reason: FinishReason | None = FinishReason.CANCELLED
    ) -> bool:
        """End a request, or one of its choices; False if it is not live.

        ``take_ended`` reports the end with ``finish_reason``; None: no report. Blocks become free at once, or when the
        steps in flight that use them are over.
        """
        if (inputs := self._lifecycle.inputs.get(request_id)) is not None:
            ids = list(inputs.ids.values()) if choice is None else filter(None, [inputs.ids.get(choice)])
            ended = [self.cancel(each, finish_reason=finish_reason) for each in ids]
            return any(ended)
        group = self._lifecycle.groups.get(request_id)
        if group is None:
            return False
        if group.beams is not None:
            return self._beams.end(group, choice, finish_reason)
        # End choices without a sequence first: otherwise they would inherit the place of another cancelled choice.
        choices = [*group.unstarted, *group.members] if choice is None else [choice]
        finish = None if finish_reason is None else Finish(finish_reason)
        ended = [self._lifecycle.end(group, each, finish) for each in choices]
        return any(ended)

    def take_started(self) -> list[str]:
        """Requests that the last planned step begins to compute."""
        started, self._lifecycle.started = self._lifecycle.started, []
        return started

    def take_ended(self) -> list[SequenceOutput]:
        """Ends since the last call that no step caused: cancelled, or past the deadline."""
        ended, self._lifecycle.ended = self._lifecycle.ended, []
        return ended

    def has_work(self) -> bool:
        """Whether there is anything to compute or report."""
        return bool(self._lifecycle.groups or self._lifecycle.ended)

    def reset_prefix_cache(self) -> int:
        """Hide all blocks computed so far, and those that build on them; return how many could be found before."""
        return self._kv.reset()

    def schedule(self) -> StepPlan | None:
        """Plan a step; None if there is nothing to compute. Call ``take_started`` and ``take_ended`` afterwards."""
        now = self._clock()
        for request_id in self._lifecycle.deadlines.expired(now):
            self.cancel(request_id, finish_reason=FinishReason.DEADLINE)
        if self._speculation is not None:
            self._speculation.look_up(self._lifecycle.running)
            if self._waits_for_results(self._speculation):
                return None
        while not (step := self._fill_step(now)).sequences:
            if self._lifecycle.in_flight or not self._beams.make_way():
                return None
        if self._encoder is not None:
            self._encoder.plan_portion(step)
        if not step.short_of_blocks:
            self._add_drafts(step)
        if self._speculation is not None and self._speculation.is_computed:
            self._ask_for_drafts(step, self._speculation)
        if self._kv.states is not None:
            step.plan_states(self._kv)
        self._lifecycle.in_flight[step.step_id] = step
        released, self._lifecycle.released = self._lifecycle.released, []
        return self._beams.with_changes(step.plan(released))

    def _fill_step(self, now: float) -> StepInFlight:
        """A step with the sequences whose turn it is, if any, but no drafts yet."""
        self._begin_step(now)
        step = StepInFlight(next(self._step_ids), self._config.max_num_batched_tokens)
        others_only = self._pacing.is_turn_of_others(now)
        self._schedule_running(step, others_only)
        while step.short_of_blocks and not step.sequences and self._lifecycle.running and not self._lifecycle.in_flight:
            # All sequences whose turn it was (at least one) were preempted, so others get theirs: with stages, or with
            # pictures that are not there.
            self._begin_step(now)
            self._schedule_running(step)
        if self._queue and not step.short_of_blocks:
            self._schedule_waiting(step, now, others_only)
        if others_only and not step.sequences:
            self._schedule_running(step)
        return step

    def update(self, plan: StepPlan, result: StepResult) -> list[SequenceOutput]:
        """Process the results of ``plan``. Raises ``ExecutorError`` if they do not match the plan."""
        step = self._lifecycle.in_flight.pop(plan.step_id)
        if not step.is_answered_by(result):
            raise ExecutorError(f"the results of step {result.step_id} do not answer the plan of step {plan.step_id}")
        if step.draft_token_ids or step.proposals:
            step.roll_back(result.token_ids)
        self._pacing.take_in(step.sequences, result, self._clock())
        self._counters.steps += 1
        self._counters.computed_tokens += self._config.max_num_batched_tokens - step.budget
        for block_tables in step.deferred:
            self._kv.release(block_tables)
        self._kv.release_states(step.deferred_states)
        if self._encoder is not None:
            self._encoder.end_step(step)
        if self._kv.states is not None:
            self._kv.states.release_sources(step.state_uses.values())
        outputs = []
        for seq, end, token_ids in zip(step.sequences, step.ends, result.token_ids, strict=True):
            if (step.dropped and seq.seq_id in step.dropped) or seq.state is SequenceState.ENDED:
                continue  # It left before the results came, or is a beam that ended with another one of this step.
            output = output_of_step(seq, end, token_ids, result) if seq.group.beams is None else None
            if seq.drafts or seq.seq_id in result.draft_token_ids or seq.seq_id in step.proposals:
                self._take_in_drafts(step, seq, token_ids if output is None else output.token_ids, result)
            if step.state_uses and (use := step.state_uses.get(seq.seq_id)) is not None and use.left:
                self._take_states(step, seq, use, end, len(token_ids))
            if end >= seq.watch_at:
                # Drafts after a token that ends the sequence were computed and accepted, but do not belong to it.
                self._lifecycle.advance(seq, min(end, seq.num_known))
            if seq.group.beams is not None:
                outputs += self._beams.take_in(seq, end, token_ids, result)
            if output is None:
                continue
            outputs.append(output)
            self._counters.generated_tokens += len(output.token_ids)
            if self._speculation is not None:
                output.accepted_drafts, output.rejected_drafts = self._speculation.totals(seq)
            if output.finish is not None:
                self._lifecycle.remove(seq)
        if self._kv.states is not None:
            self._kv.states.release_left(step.state_uses.values())
        return outputs

    def _take_in_drafts(self, step: StepInFlight, seq: Sequence, token_ids: list[int], result: StepResult) -> None:
        """Judge the drafts of ``seq`` by the ``token_ids`` that it got, then take new ones."""
        forced, proposed = result.draft_token_ids.get(seq.seq_id), result.proposed_token_ids.get(seq.seq_id)
        if seq.is_proposed and self._speculation is not None:
            self._speculation.judge(seq, token_ids, len(step.draft_token_ids.get(seq.seq_id, ())))
        else:
            drafting.judge(seq, token_ids)
        if forced is not None:
            seq.drafts, seq.is_proposed = forced, False
        elif self._speculation is not None and seq.seq_id in step.proposals:
            if proposed is None:
                self._speculation.lack(seq)
            else:
                self._speculation.take(seq, proposed)

    def _take_states(self, step: StepInFlight, seq: Sequence, use: StateUse, end: int, num_sampled: int) -> None:
        """Go on from the states that a step has left for ``seq``, which now has ``end`` computed tokens."""
        assert self._kv.states is not None
        if 0 < num_sampled <= len(step.draft_token_ids.get(seq.seq_id, ())):
            self._kv.states.roll_back(seq, use, num_sampled)
        self._kv.take_snapshots(seq, use, min(end, seq.num_known))

    @property
    def computed_tokens(self) -> int:
        """Rows of all completed forward passes."""
        return self._counters.computed_tokens

    def stats(self) -> SchedulerStats:
        """The present load and counters."""
        counters, pool = self._counters, self._kv.pool
        slots = None if self._kv.states is None else self._kv.states.pool
        returning = list(self._queue.returning())
        return SchedulerStats(
            running_seqs=len(self._lifecycle.running),
            waiting_reqs=self._queue.num_requests,
            returning_reqs=len({seq.group.request.request_id for seq in returning}),
            waiting_seqs=self._lifecycle.num_choices - len(self._lifecycle.running),
            queued_tokens=self._queue.num_tokens + sum(seq.num_tokens for seq in returning),
            kv_blocks=pool.num_blocks,
            kv_blocks_used=pool.num_blocks - pool.num_free,
            steps=counters.steps,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            preemptions=counters.preemptions,
            prefix_query_tokens=counters.prefix_query_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            state_slots=0 if slots is None else slots.num_blocks,
            state_slots_used=0 if slots is None else slots.num_blocks - slots.num_free,
            encoder_cache_tokens=0 if self._encoder is None else self._encoder.capacity,
            encoder_cache_tokens_held=0 if self._encoder is None else self._encoder.num_held,
            encoded_pictures=counters.encoded_pictures,
            encoded_picture_tokens=counters.encoded_picture_tokens,
            encoder_cache_uses=counters.encoder_cache_uses,
            encoder_cache_hits=counters.encoder_cache_hits,
            drafts=counters.drafts,
            draft_tokens=counters.draft_tokens,
            accepted_draft_tokens=counters.accepted_draft_tokens,
            accepted_by_position=tuple(counters.accepted_by_position),
        )

    def _begin_step(self, now: float) -> None:
        self._tenants.begin_step(now)
        if self._encoder is not None:
            self._encoder.begin_step(others_wait=self._others_would_wait())

    def _schedule_running(self, step: StepInFlight, others_only: bool = False) -> None:
        """``others_only``: without sequences with slow grammars."""
        # In order of rank, so that none is preempted after it was planned.
        sequences = self._pacing.in_turn(self._lifecycle.running, others_only=others_only)
        if self._stages > 1:
            sequences = self._sequences_in_turn(sequences)
        index = 0
        while index < len(sequences) and step.budget > 0:
            seq = sequences[index]
            index += 1
            if seq.state is not SequenceState.RUNNING:
                continue  # Preempted by a sequence before it.
            if seq.num_computed == seq.group.max_computed or ((seq.drafts or seq.is_drafted) and self._waits(seq)):
                continue  # All tokens are computed, or the pending token must be known first.
            if seq.group.beams is not None and seq.has_pending_token:
                continue  # Its search goes on when all of its beams have been computed.
            wanted = seq.num_tokens - seq.num_computed
            if wanted > 1 or seq.num_computed < seq.group.end_of_pictures:
                wanted = self._chunk(seq, wanted, step, num_later=len(sequences) - index)
                if not wanted:
                    continue
            if seq.num_computed + wanted > seq.capacity:
                added = self._make_room(seq, seq.num_computed + wanted, step)
                if added is None:
                    continue
                step.append_blocks(seq, added)
            self._add(step, seq, wanted)

    def _others_would_wait(self) -> bool:
        """Whether a sequence gets its tokens one by one, and waits longer if prompts go on in larger pieces."""
        running = self._lifecycle.running
        return self._config.enable_chunked_prefill and any(
            seq.num_tokens - seq.num_computed <= 1 and seq.num_computed >= seq.group.end_of_pictures for seq in running
        )

    def _chunk(self, seq: Sequence, wanted: int, step: StepInFlight, num_later: int) -> int:
        """How many of the ``wanted`` tokens of a running ``seq`` the step computes; ``num_later``: sequences after it.

        Counts them for the tenant.
        """
        tenant, start, least = seq.group.tenant, seq.num_computed, self._least_chunk(seq, seq.num_computed)
        if is_prompt := wanted > 1:
            # Leave a token for each later sequence, so that a long prompt does not interrupt decoding.
            wanted = min(wanted, max(least, step.budget - num_later), step.budget)
            wanted = self._tenants.prompt_room(tenant, wanted, least)
        if self._encoder is not None and wanted:
            wanted = self._encoder.reach(seq.group, start, start + wanted) - start
            step.short_of_pictures |= not wanted  # It comes before newcomers, which could keep its room for ever.
        if is_prompt:
            self._tenants.plan_prompt(tenant, wanted)
        return wanted

    def _add(self, step: StepInFlight, seq: Sequence, wanted: int) -> None:
        """Plan to compute the next ``wanted`` tokens of ``seq``, which has blocks for them, and their pictures."""
        if self._encoder is not None:
            self._encoder.take(seq, seq.num_computed, seq.num_computed + wanted, step)
        step.add(seq, wanted)

    def _sequences_in_turn(self, running: list[Sequence]) -> list[Sequence]:
        """The ``running`` sequences that a step may compute with several stages, in order of rank: prompts, and one
        stage's equal part of the decoding sequences, those planned longest ago.
        """
        decoding = [
            seq
            for seq in running
            if seq.num_tokens - seq.num_computed == 1 and seq.num_computed < seq.group.max_computed
        ]
        part = -(-len(decoding) // self._stages)
        ready = sorted((seq for seq in decoding if not seq.has_pending_token), key=lambda seq: seq.last_step or 0)
        later = {seq.seq_id for seq in ready[part:]}
        return [seq for seq in running if not seq.has_pending_token and seq.seq_id not in later]

    def _waits(self, seq: Sequence) -> bool:
        """Whether ``seq``, which has or awaits drafts, waits for its pending token (the module's docstring says why).

        With stages, sequences with pending tokens do not get here.
        """
        if seq.is_drafted or seq.is_proposed or not seq.has_pending_token:
            return seq.is_drafted
        rows, config = len(self._lifecycle.running), self._config
        room = min(
            len(seq.drafts) - seq.num_pending,
            min(config.max_num_seqs, config.max_num_batched_tokens) - rows,
            seq.group.max_computed - seq.num_computed - 1,
        )
        if self._kv.pool.num_free <= self._headroom:
            room = min(room, seq.capacity - seq.num_computed - 1)
        if self._kv.states is not None:
            room = min(room, self._kv.states.num_spare)
        return self._num_drafts(seq, room, rows) > 0

    def _waits_for_results(self, speculation: Speculation) -> bool:
        """Whether no step is planned until the results of those in flight are known (the module's docstring says why).

        With stages, sequences with pending tokens are not planned anyway.
        """
        flights = self._lifecycle.in_flight.values()
        if self._stages > 1 or not flights:
            return False
        speculation.overlaps = True
        if any(step.speculates for step in flights):
            return True
        running = self._lifecycle.running
        offers = [
            Offer(0, seq, room)
            for seq in running
            if seq.is_proposed
            and (room := min(len(seq.drafts) - seq.num_pending, seq.group.max_computed - seq.num_computed - 1)) > 0
        ]
        most = min(self._config.max_num_seqs, self._config.max_num_batched_tokens) - len(running)
        return bool(speculation.choose(offers, len(running), len(running), min(most, self._room_for_states())))

    def _num_drafts(self, seq: Sequence, most: int, rows: int) -> int:
        """How many forced drafts, of at most ``most``, a step with ``rows`` rows takes from ``seq``."""
        most = min(most, self._config.num_speculative_tokens)
        return drafting.num_worthwhile(seq.drafts_come_true, most, rows)

    def _add_drafts(self, step: StepInFlight) -> None:
        """Add drafts of decoding sequences, as far as there is room and they are worth it: first those that grammars
        force.

        At most ``max_num_seqs`` rows are sampled, because memory was profiled with their logits.
        """
        decoding = sum(step.samples)
        rows, offers = self._config.max_num_seqs - decoding, list[Offer]()
        for place, seq in enumerate(step.sequences):
            # A sequence with drafts decodes. Its only pending token must be the one this step samples.
            if not seq.drafts or seq.num_pending != 1:
                continue
            room = min(len(seq.drafts), seq.group.max_computed - seq.num_computed)
            if seq.is_proposed:
                offers.append(Offer(place, seq, room))
                continue
            room = min(room, rows, step.budget, self._room_for_states())
            taken = self._num_drafts(seq, room, self._config.max_num_batched_tokens - step.budget)
            rows -= self._give_drafts(step, place, seq.drafts[:taken])
        if offers and self._speculation is not None:
            most = min(rows, step.budget, self._room_for_states())
            rows_so_far = self._config.max_num_batched_tokens - step.budget
            for offer, taken in self._speculation.choose(offers, rows_so_far, decoding, most):
                self._give_drafts(step, offer.place, offer.seq.drafts[:taken])

    def _ask_for_drafts(self, step: StepInFlight, speculation: Speculation) -> None:
        """Ask for drafts behind the tokens that the step samples, for the sequences' next step."""
        decoding = sum(step.samples)
        most = min(self._config.max_num_seqs, self._config.max_num_batched_tokens) - decoding
        offers = [
            Offer(place, seq, room)
            for place, (seq, samples) in enumerate(zip(step.sequences, step.samples, strict=True))
            if samples
            and seq.num_pending == 1 + len(step.draft_token_ids.get(seq.seq_id, ()))
            and seq.group.speculates
            and (room := seq.group.max_computed - seq.num_computed - 1) > 0
        ]
        for offer, wanted in speculation.ask(offers, decoding, min(most, self._room_for_states())):
            step.ask_for_drafts(offer.place, wanted)

    def _room_for_states(self) -> int:
        """Drafts before which states can be kept."""
        return self._config.max_num_seqs if self._kv.states is None else self._kv.states.num_spare

    def _give_drafts(self, step: StepInFlight, place: int, drafts: list[int]) -> int:
        """Add ``drafts`` of the sequence at ``place``, as far as there are blocks; returns how many.

        They take no blocks that others need: each running sequence can still get one more block in each of its tables.
        """
        seq = step.sequences[place]
        if not drafts:
            return 0
        added = self._kv.grow(seq, seq.num_computed + len(drafts), headroom=self._headroom)
        if added is None:
            drafts = drafts[: seq.capacity - seq.num_computed]
        else:
            step.append_blocks(seq, added)
        if drafts:
            step.add_drafts(place, drafts)
            if self._kv.states is not None:
                step.draft_slots[seq.seq_id] = self._kv.states.take_for_drafts(len(drafts))
        return len(drafts)

    def _make_room(self, seq: Sequence, num_tokens: int, step: StepInFlight) -> BlockTables | None:
        """Add blocks so that ``seq`` has room for ``num_tokens``, preempting others if needed.

        Returns the added blocks, or None if ``seq`` must wait.
        """
        lifecycle = self._lifecycle
        while True:
            added = self._kv.grow(seq, num_tokens)
            if added is not None:
                return added
            step.short_of_blocks = True
            if lifecycle.drop_idle_prompt():
                continue
            if any(self._brings_back_blocks(flight) for flight in lifecycle.in_flight.values()):
                return None  # Steps in flight will free blocks: no preemption is needed.
            victim = lifecycle.running[-1]
            lifecycle.preempt(victim)
            if victim is seq:
                return None

    def _brings_back_blocks(self, flight: StepInFlight) -> bool:
        """Whether the results of ``flight`` will free blocks."""
        return bool(flight.deferred) or any(
            seq.seq_id not in flight.dropped
            and self._kv.will_free(seq, end - len(flight.draft_token_ids.get(seq.seq_id, ())))
            for seq, end in zip(flight.sequences, flight.ends, strict=True)
        )

    def _schedule_waiting(self, step: StepInFlight, now: float, others_only: bool) -> None:
        running = Counter(seq.group.tenant for seq in self._lifecycle.running)
        passed: set[str] = set()  # tenants that have their share and are skipped
        while step.budget > 0 and (seq := self._queue.peek(passed)) is not None:
            tenant = seq.group.tenant
            has_room = self._tenants.prompt_room(tenant, step.budget) > 0
            has_place = self._has_place(tenant, running)
            while has_room and not has_place and self._beams.make_way(seq.group):
                running[tenant] -= 1
                has_place = self._has_place(tenant, running)
            if running.total() >= self._places:
                return
            if seq.group.leader is not None:
                self._queue.pop(seq)
                self._lifecycle.wait_for_leader(seq)
                continue
            if not has_room or not has_place:
                passed.add(tenant)
                continue
            prefix = self._kv.find_prefix(seq)
            start = prefix.num_blocks * self._kv.block_size
            missing = seq.num_tokens - start
            room = self._room_for_prompt(seq, start, step)
            if room < missing and not self._config.enable_chunked_prefill:
                return
            if prefix.is_awaited:
                passed.add(tenant)  # What it lacks is being computed, and found in one of the next steps.
                continue
            # If a single token is missing, nothing can be computed before it: it waits only for room in the step.
            held = self._pacing.holds_back(seq, others_only=others_only and missing > 1)
            if held and missing == 1:
                passed.add(tenant)
                continue
            wanted = self._first_chunk(seq, start, min(missing - held, room))
            if self._least_chunk(seq, start) > step.budget:
                return  # It needs a larger part of a step than others leave while they go on coming.
            if not wanted or (seq.group.end_of_pictures > start and step.short_of_pictures):
                step.short_of_pictures = True  # It comes before all others that need the encoder.
                passed.add(tenant)
                continue
            kept = self._blocks_kept(tenant, running)
            while not (is_admitted := self._admit(seq, prefix, kept)) and self._beams.make_way(seq.group):
                running[tenant] -= 1
            if not is_admitted:
                if not kept:
                    return
                passed.add(tenant)
                continue
            self._queue.pop(seq)
            self._lifecycle.start(seq, now)
            running[tenant] += 1
            step.introduce(seq)
            self._add(step, seq, wanted)
            self._tenants.plan_prompt(tenant, wanted)

    def _has_place(self, tenant: str, running: Counter[str]) -> bool:
        """Whether one more sequence of ``tenant`` may run beside those ``running``, counted by tenant."""
        return self._places - running.total() > self._tenants.places_kept(tenant, running)

    def _least_chunk(self, seq: Sequence, start: int) -> int:
        """The fewest tokens of ``seq`` from ``start`` on that a step can compute."""
        return 1 if self._encoder is None else self._encoder.undivided(seq.group, start)

    def _room_for_prompt(self, seq: Sequence, start: int, step: StepInFlight) -> int:
        """How many tokens of a prompt that starts at ``start`` the step may compute."""
        least = self._least_chunk(seq, start)
        return self._tenants.prompt_room(seq.group.tenant, step.budget, least)

    def _first_chunk(self, seq: Sequence, start: int, wanted: int) -> int:
        """How many of the ``wanted`` tokens from ``start`` on the pictures of a waiting ``seq`` allow."""
        if self._encoder is None:
            return wanted
        reached = self._encoder.reach(seq.group, start, start + wanted) - start
        # Without chunks a prompt waits until all its pictures can be had.
        return reached if reached == wanted or self._config.enable_chunked_prefill else 0

    @property
    def _headroom(self) -> int:
        """Blocks needed to give each running sequence one more in each of its tables."""
        return len(self._lifecycle.running) * self._kv.num_groups

    def _blocks_kept(self, tenant: str, running: Counter[str]) -> int:
        """Blocks that must stay free if a sequence of ``tenant`` starts now."""
        pool = self._kv.pool
        if pool.num_free > pool.num_blocks // 2 or not self._tenants.others_came(tenant):
            return 0
        held = sum(self._kv.num_held(seq) for seq in self._lifecycle.running if seq.group.tenant == tenant)
        return self._tenants.blocks_kept(tenant, running, held)

    def _admit(self, seq: Sequence, prefix: Prefix, kept: int) -> bool:
        """Give ``seq`` its blocks, if there are enough without preemption.

        ``kept`` further blocks must stay free; unless that is 0, idle prompts are not dropped, either.
        """
        headroom = self._headroom + kept
        while not self._kv.admit(seq, prefix, headroom):
            if kept or not self._lifecycle.drop_idle_prompt(keep=seq.group):
                return False
        return True


def _encoder_of(
    config: SchedulerConfig, cache: CacheConfig, model: ModelSpec, counters: Counters
) -> EncoderCacheManager | None:
    """None if the model takes no pictures. Raises ``ConfigError``."""
    if (vision := model.vision) is None:
        return None
    return EncoderCacheManager(
        encoder_cache_tokens(cache, config, vision),
        encoder_step_tokens(config, vision),
        encoder_portion_tokens(config, model.picture_token_cost),
        counters,
        attends_both_ways=vision.attends_both_ways,
    )


def _check_limits(config: SchedulerConfig, kv_cache: KVCacheConfig, model: ModelSpec) -> None:
    budget, longest = config.max_num_batched_tokens, model.max_model_len
    config.require_step_for(longest)
    if model.vision is not None:
        require_step_for_pictures(config, model.vision)
    needed = blocks_of_longest(kv_cache.groups, longest, budget, kv_cache.block_size)
    if kv_cache.num_blocks < needed:
        raise OutOfMemoryError(
            f"the KV cache has {kv_cache.num_blocks} blocks of {kv_cache.block_size} tokens, fewer than the {needed} "
            f"that a sequence of max_model_len={longest} takes: lower --max-model-len or give the cache more memory"
        )
    if 0 < kv_cache.num_states <= SPARE_SLOTS:
        raise OutOfMemoryError(
            f"the cache has {kv_cache.num_states} slots for states, fewer than the {SPARE_SLOTS + 1} that a sequence "
            "takes: give the cache more memory"
        )
