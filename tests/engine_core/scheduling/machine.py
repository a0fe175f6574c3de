"""A machine that drives a scheduler with what hypothesis thinks of: requests, cancels, deadlines, overlapping steps.

It checks that no block leaks or is used wrongly, that no token is lost or wrong, that nothing forgotten is found again,
that a choice that fails ends alone, and that the scheduler never stands still: while nothing is in flight and something
waits, each call of ``schedule`` plans a step or ends something. With stages, no step takes more than its part of the
decoding sequences.
Tokens are compared with a computation that knows no scheduler, so they do not depend on cache size (preemption),
chunking, prefix caching, batch or overlap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_core.config import CacheConfig, SchedulerConfig
from engine_core.errors import QueueFullError
from engine_core.kv_cache import state_slots
from engine_core.kv_cache_interface import NO_BLOCK, KVCacheConfig, blocks_of_longest, group_layers
from engine_core.media import MediaItem, VisionShape
from engine_core.request import BeamSearch, FinishReason, Request, SamplingParams
from engine_core.scheduling import Scheduler, drafting
from engine_core.scheduling.fairness import LATELY
from engine_core.speculation import ASSUMED_STEP_TIMES, StepTimes

from ..drafters import DraftingExecutor, ScriptedDrafter
from .audit import (
    MOST_PICTURE_TOKENS,
    Stream,
    check_holders,
    check_idle,
    check_room_for_others,
    decoding_seq_ids,
    texts,
)
from .checked_executor import CheckedExecutor, expected_beams, failing, make_picture, model_spec

MODEL = model_spec(vocab_size=12, max_model_len=32)

SPECULATIVE_CONFIGS = {
    None: None,
    "ngram": '{"method": "ngram", "prompt_lookup_min": 1}',
    "tenant": '{"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_scope": "tenant"}',
    "draft_model": '{"method": "draft_model", "model": "scripted"}',
}
FLAT = StepTimes((1,), (1.0,))
"""A row costs nothing."""
STEEP = StepTimes((1, 2, 4), (1.0, 1.5, 3.5), draft_seconds=(0.2, 0.2, 0.3))

PICTURES = [make_picture(number, tokens) for number, tokens in enumerate([1, 2, 3, 3, MOST_PICTURE_TOKENS])]

prompts = st.one_of(
    # Prefixes of one another, so that blocks are found again, and prompts that have nothing in common.
    st.integers(1, 31).map(lambda length: tuple(2 + at % 5 for at in range(length))),
    st.lists(st.integers(0, 11), min_size=1, max_size=31).map(tuple),
)

pictures = st.one_of(
    st.just([]), st.lists(st.tuples(st.integers(0, 7), st.sampled_from(PICTURES)), min_size=1, max_size=5)
)
"""Each with the number of tokens before it."""


def with_pictures(prompt, pictures):
    """``prompt`` with as many of ``pictures`` as it has room for, and their places."""
    tokens, media, end = list(prompt), [], 0
    for gap, picture in pictures:
        item = MediaItem(picture, end + gap)
        if item.end > len(prompt):
            break
        tokens[item.offset : item.end] = [3] * picture.shape.num_tokens
        media.append(item)
        end = item.end
    return tuple(tokens), tuple(media)


sampling = st.builds(
    SamplingParams,
    n=st.sampled_from([1, 1, 2, 3, 5]),
    max_tokens=st.integers(1, 20),
    seed=st.integers(0, 3),
    ignore_eos=st.booleans(),
    stop_token_ids=st.frozensets(st.integers(0, 11), max_size=1),
    logprobs=st.sampled_from([None, 0]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
    grammar=st.one_of(
        st.none(), st.none(), st.just("never fails"), st.builds(failing, st.integers(-1, 8), st.integers(0, 2))
    ),
)


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.serial = 0
        self.streams: dict[str, Stream] = {}
        self.results = deque()
        """Submitted steps whose results are not taken in."""
        self.delivered = 0
        """Tokens."""
        self.came: dict[str, float] = {}
        """When each tenant brought its last request."""
        self.forgotten = 0
        """Requests that came before the prefix cache was reset."""
        self.patches = []

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 16]),
        spare_tokens=st.sampled_from([0, 0, 8, 12, 16, 64, 256]),
        max_num_seqs=st.sampled_from([1, 2, 4, 8, 16]),
        budget=st.sampled_from([1, 3, 3, 8, 64]),
        chunked=st.booleans(),
        prefix_caching=st.booleans(),
        policy=st.sampled_from(["priority", "fcfs"]),
        drafts=st.sampled_from([None, None, "right", "wrong", "mixed"]),
        trusting=st.booleans(),
        num_speculative_tokens=st.sampled_from([0, 1, 8, 8, 64]),
        speculation=st.sampled_from([None, "ngram", "ngram", "tenant", "draft_model"]),
        proposals=st.sampled_from(["right", "wrong", "mixed"]),
        step_times=st.sampled_from([FLAT, ASSUMED_STEP_TIMES, STEEP]),
        windows=st.sampled_from([(None,), (None,), (None, None), (1,), (5,), (9, None), (2, 8, None, 8)]),
        window_chunks=st.booleans(),
        stages=st.sampled_from([1, 1, 2, 3]),
        states=st.sampled_from([0, 0, 3, 4, 6, 10, 40]),
        attends=st.sampled_from([True, True, True, False]),
        milestone=st.sampled_from([1, 4, 512]),
        sees=st.sampled_from([False, True, True]),
        both_ways=st.booleans(),
        encoder_spare=st.sampled_from([0, 0, 1, 3, 100]),
        picture_token_cost=st.sampled_from([0.1, 1.0, 16.0]),
    )
    def start(
        self,
        block_size,
        spare_tokens,
        max_num_seqs,
        budget,
        chunked,
        prefix_caching,
        policy,
        drafts,
        trusting,
        num_speculative_tokens,
        speculation,
        proposals,
        step_times,
        windows,
        window_chunks,
        stages,
        states,
        attends,
        milestone,
        sees,
        both_ways,
        encoder_spare,
        picture_token_cost,
    ):
        """``trusting``: drafts are computed however many came true. ``window_chunks``: windows do not slide.

        ``speculation``: the method, or the scope of n-grams. ``states``: slots for states, if layers keep any; only
        then may no layer attend. ``milestone``: the first one. ``sees``: the model takes pictures. ``encoder_spare``:
        room for embeddings behind the least.
        """
        for module, name, value in (
            (drafting, "FREE_ROWS", 1000 if trusting else drafting.FREE_ROWS),
            (state_slots, "_MILESTONE", milestone),
            (state_slots, "_CALL_TOKENS", 2),
        ):
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.patches.append(patch)
        self.stages = stages
        self.model, encoder_tokens = MODEL, None
        if sees:
            vision = VisionShape(MOST_PICTURE_TOKENS, attends_both_ways=both_ways)
            self.model = replace(MODEL, vision=vision, picture_token_cost=picture_token_cost)
            budget = max(budget, MOST_PICTURE_TOKENS) if both_ways else budget
            encoder_tokens = encoder_spare + (MOST_PICTURE_TOKENS if chunked else max(budget, MODEL.max_model_len))
        self.config = SchedulerConfig(
            max_num_batched_tokens=budget if chunked else max(budget, MODEL.max_model_len),
            max_num_seqs=max_num_seqs,
            max_num_queued_reqs=6,
            policy=policy,
            enable_chunked_prefill=chunked,
            num_speculative_tokens=num_speculative_tokens,
            speculative_config=SPECULATIVE_CONFIGS[speculation] if min(budget, max_num_seqs) > 1 else None,
        )
        groups = group_layers(windows, chunked=window_chunks) if attends or not states else ()
        step_tokens = self.config.max_num_batched_tokens
        longest = blocks_of_longest(groups, MODEL.max_model_len, step_tokens, block_size)
        blocks = longest + spare_tokens // block_size if groups else 0
        size = KVCacheConfig(blocks, block_size, 1, groups, num_states=states)
        cache = CacheConfig(
            block_size=block_size, enable_prefix_caching=prefix_caching, encoder_cache_tokens=encoder_tokens
        )
        self.scheduler = Scheduler(
            self.config, cache, size, self.model, lambda: self.now, stages=stages, step_times=step_times
        )
        self.executor = CheckedExecutor(
            self.model,
            size,
            self.config,
            max_concurrent_steps=3,
            stages=stages,
            encoder_tokens=encoder_tokens or 0,
        )
        self.submit = self.executor.submit
        self.submit = DraftingExecutor(self.executor, self.scripted(drafts), self.scripted(proposals)).submit

    def scripted(self, way):
        return None if way is None else ScriptedDrafter(lambda: texts(self.streams), MODEL.vocab_size, way)

    @rule(
        prompt=prompts,
        pictures=pictures,
        params=sampling,
        min_tokens=st.integers(0, 4),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["a", "b", ""]),
        salt=st.sampled_from([b"", b"", b"s"]),
        seconds=st.one_of(st.none(), st.none(), st.integers(0, 30)),
        resumed=st.dictionaries(st.integers(0, 4), st.lists(st.integers(2, 11), max_size=20), max_size=3),
        resume=st.sampled_from([False, False, False, True]),
        speculation=st.sampled_from([True, True, True, False]),
    )
    def add(self, prompt, pictures, params, min_tokens, priority, tenant, salt, seconds, resumed, resume, speculation):
        longest = min(params.max_tokens, MODEL.max_model_len - len(prompt))
        self.bring(
            prompt,
            replace(params, min_tokens=min(min_tokens, params.max_tokens)),
            priority=priority,
            tenant=tenant,
            cache_salt=salt,
            deadline=None if seconds is None else self.now + seconds,
            resume={choice: tuple(ids[:longest]) for choice, ids in resumed.items() if resume and choice < params.n},
            pictures=pictures,
            speculation=speculation,
        )

    def bring(self, prompt, params, *, tenant, pictures=(), media=(), **options):
        if pictures and self.model.vision is not None:
            prompt, media = with_pictures(prompt, pictures)
        request = Request(f"r{self.serial}", prompt, params, tenant=tenant, media=media, **options)
        self.executor.expect(request)
        waiting = [group for group in self.scheduler._lifecycle.groups.values() if group.admission is None]
        limit = self.config.max_num_queued_reqs
        assert self.scheduler.stats().waiting_reqs == len(waiting)
        if self.config.policy == "fcfs":
            full = len(waiting) == limit
        else:
            full = sum(group.tenant == tenant for group in waiting) >= limit - len(waiting)
        try:
            self.scheduler.add(request)
        except QueueFullError:
            assert full
            return
        assert not full
        self.serial += 1
        stream = self.streams[request.request_id] = Stream(request, MODEL)
        if request.deadline is not None:
            stream.cut = dict.fromkeys(stream.tokens, FinishReason.DEADLINE)
        self.take(self.scheduler.take_ended())
        if not stream.done:
            self.came[tenant] = self.now

    @rule(
        data=st.data(),
        prompt=prompts,
        pictures=pictures,
        width=st.integers(1, 6),
        max_tokens=st.integers(1, 12),
        ignore_eos=st.booleans(),
        stop_token_ids=st.frozensets(st.integers(0, 11), max_size=2),
        min_tokens=st.integers(0, 4),
        early_stopping=st.sampled_from([False, True, None]),
        length_penalty=st.sampled_from([1.0, 0.0, -1.0, 2.5]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["a", "b", ""]),
        seconds=st.one_of(st.none(), st.none(), st.integers(0, 30)),
        resume=st.sampled_from([False, False, True]),
    )
    def search(
        self,
        data,
        prompt,
        pictures,
        width,
        max_tokens,
        early_stopping,
        length_penalty,
        tenant,
        resume,
        seconds,
        **others,
    ):
        """``resume``: some choices are known in part from elsewhere."""
        width = min(width, self.scheduler._places)
        priority, min_tokens = others.pop("priority"), min(others.pop("min_tokens"), max_tokens)
        params = SamplingParams(
            temperature=0.0,
            n=data.draw(st.integers(1, width)),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            beam_search=BeamSearch(width, length_penalty, early_stopping),
            **others,
        )
        known: dict[int, tuple[int, ...]] = {}
        if resume:
            found = expected_beams(Request("", prompt, params), MODEL) if not pictures else {}
            for choice, (output, _) in found.items():
                if data.draw(st.booleans()):
                    known[choice] = tuple(output[: data.draw(st.integers(0, len(output)))])
        deadline = None if seconds is None else self.now + seconds
        self.bring(prompt, params, priority=priority, tenant=tenant, deadline=deadline, resume=known, pictures=pictures)

    @rule(data=st.data(), max_tokens=st.integers(1, 8))
    def follow(self, data, max_tokens):
        """The next turn of a conversation: a prompt and what came of it so far are the next prompt."""
        if not self.streams:
            return
        stream = self.streams[data.draw(st.sampled_from(list(self.streams)))]
        request, output = stream.request, next(iter(stream.tokens.values()))
        prompt = (*request.prompt_token_ids, *output)[: MODEL.max_model_len - 1]
        params = SamplingParams(max_tokens=max_tokens)
        media = tuple(item for item in request.media if item.end <= len(prompt))
        self.bring(prompt, params, tenant=request.tenant, cache_salt=request.cache_salt, media=media)

    @rule(data=st.data(), whole=st.booleans(), silent=st.booleans())
    def cancel(self, data, whole, silent):
        live = [request_id for request_id, stream in self.streams.items() if not stream.done]
        if not live:
            return
        request_id = data.draw(st.sampled_from(live))
        stream = self.streams[request_id]
        open_choices = [choice for choice, finish in stream.finish.items() if finish is None]
        choices = open_choices if whole else [data.draw(st.sampled_from(open_choices))]
        finish_reason = None if silent else FinishReason.CANCELLED
        assert self.scheduler.cancel(request_id, None if whole else choices[0], finish_reason)
        assert not self.scheduler.cancel(request_id, None if whole else choices[0], finish_reason)
        ended = self.scheduler.take_ended()
        assert sorted(output.choice for output in ended) == ([] if silent else choices)
        for choice in choices:
            stream.cut[choice] = FinishReason.CANCELLED
            if silent:
                stream.finish[choice] = "silent"
        self.take(ended)

    @rule(steps=st.integers(1, 5))
    def step(self, steps):
        for _ in range(steps):
            self.plan()
            self.take_result(keep=0)

    @rule(keep=st.integers(0, 2), steps=st.integers(1, 10))
    def overlap(self, keep, steps):
        """Plan ahead of results that are not in yet: ends and tokens are learned late."""
        for _ in range(steps):
            self.plan()
            self.take_result(keep)

    @rule(
        count=st.integers(2, 5),
        choices=st.sampled_from([(1,), (1,), (3,), (5,), (1, 2)]),
        length=st.sampled_from([2, 2, 9, 17, 21]),
        alike=st.booleans(),
        priorities=st.sampled_from([(0,), (0, -1), (0, 1)]),
        max_tokens=st.sampled_from([(30,), (3, 30), (6, 30)]),
        keep=st.integers(0, 2),
        tenant=st.sampled_from(["a", "b", ""]),
        pictures=pictures,
    )
    def crowd(self, count, choices, length, alike, priorities, max_tokens, keep, tenant, pictures):
        """Several grow together, beyond what a small cache holds; ``alike``: they compute the same blocks."""
        for number in range(count):
            seed = 0 if alike else number
            most, n = max_tokens[number % len(max_tokens)], choices[number % len(choices)]
            self.bring(
                (3 + seed, *(2 + at % 10 for at in range(length - 1))),
                SamplingParams(n=n, max_tokens=most, ignore_eos=True, seed=seed),
                priority=priorities[number % len(priorities)],
                tenant=tenant,
                pictures=pictures if alike else pictures[number % 2 :],
            )
        self.overlap(keep, steps=20)

    @rule(seconds=st.sampled_from([1, 5, 10, 60]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def forget(self):
        self.scheduler.reset_prefix_cache()
        self.executor.generation += 1
        self.forgotten = self.serial

    @precondition(lambda self: hasattr(self, "scheduler"))
    @invariant()
    def blocks_add_up(self):
        check_holders(self.scheduler)

    @precondition(lambda self: hasattr(self, "scheduler"))
    @invariant()
    def what_is_counted_is_what_was_delivered(self):
        assert self.scheduler.stats().generated_tokens == self.delivered

    def plan(self):
        decoding = decoding_seq_ids(self.scheduler)
        plan = self.scheduler.schedule()
        ended = self.scheduler.take_ended()
        self.take(ended)
        if plan is not None and self.stages > 1:
            assert len(decoding.intersection(plan.seq_ids)) <= -(-len(decoding) // self.stages)
        assert plan or ended or self.results or not self.scheduler.has_work(), "the scheduler stands still"
        if plan is not None:
            check_room_for_others(self.scheduler, plan, {tenant for tenant in self.came if self.expects_others(tenant)})
            self.check_prefixes(plan)
            config, speculation = self.config, self.config.speculation
            most = 0 if speculation is None else speculation.num_speculative_tokens
            assert max(plan.proposals.values(), default=0) <= most
            planned = self.scheduler._lifecycle.in_flight[plan.step_id].sequences
            assert all(seq.group.request.speculation for seq in planned if seq.seq_id in plan.proposals)
            most = max(most, config.num_speculative_tokens)
            assert max(map(len, plan.draft_token_ids.values()), default=0) <= most
            self.results.append((plan, self.submit(plan)))

    def check_prefixes(self, plan):
        """A request that came after a reset starts from nothing that was computed before, or rests on that."""
        planned = self.scheduler._lifecycle.in_flight[plan.step_id].sequences
        serials = {seq.seq_id: int(seq.group.request.request_id.removeprefix("r")) for seq in planned}
        size = self.executor.kv_cache_config.block_size
        for new in plan.new:
            if new.num_computed_tokens and serials[new.seq_id] >= self.forgotten:
                for table in new.block_ids:
                    last = table[new.num_computed_tokens // size - 1]
                    assert last == NO_BLOCK or self.executor.rests_on[last, size - 1] == self.executor.generation
                if plan.states is not None:
                    source = plan.states.sources[plan.seq_ids.index(new.seq_id)]
                    assert self.executor.state_rests_on[source] == self.executor.generation

    def expects_others(self, tenant):
        """Whether another tenant was here lately."""
        others = [at for other, at in self.came.items() if other != tenant]
        return self.config.policy == "priority" and any(self.now - at < LATELY for at in others)

    def take_result(self, keep):
        while len(self.results) > keep:
            plan, pending = self.results.popleft()
            self.take(self.scheduler.update(plan, pending.result()))

    def take(self, outputs):
        for output in outputs:
            self.delivered += len(output.token_ids)
            self.streams[output.request_id].take(output)

    def teardown(self):
        """Nobody starves: whoever is first in rank advances in every step, so the work left bounds the steps.

        With stages it advances when it is its turn: after all that were planned a longer time ago.
        """
        if not hasattr(self, "scheduler"):
            return
        try:
            self.take_result(keep=0)  # steps are taken in under the constants under which they were planned
        finally:
            for patch in self.patches:
                patch.stop()
        live = [stream for stream in self.streams.values() if not stream.done]
        bound = sum(
            len(stream.request.prompt_token_ids) + len(stream.expected[choice][0]) + 1
            for stream in live
            for choice, finish in stream.finish.items()
            if finish is None
        )
        for stream in live:  # beams may have to make way for each other, and be computed again, at each token
            if (beam_search := stream.request.params.beam_search) is not None:
                bound += stream.request.params.max_tokens * beam_search.width * MODEL.max_model_len
        places = self.scheduler._places
        rows = min(self.config.max_num_batched_tokens, -(-places // self.stages))
        turns = 1 if self.stages == 1 else -(-places // rows)
        for _ in range(bound * turns):
            if not self.scheduler.has_work():
                break
            self.plan()
            self.take_result(keep=0)
        assert all(stream.done for stream in self.streams.values())
        check_idle(self.scheduler)
