"""A scheduler with a checked executor, small enough to reason about by hand: blocks of 4 tokens, 64 tokens at most."""

from __future__ import annotations

from engine_core.config import CacheConfig, SchedulerConfig, encoder_cache_tokens
from engine_core.kv_cache_interface import KVCacheConfig, group_layers
from engine_core.media import MediaItem
from engine_core.request import FinishReason, Request, SamplingParams
from engine_core.scheduling import Scheduler

from ..drafters import DraftingExecutor, ScriptedDrafter
from .audit import Stream, check_holders, check_idle, texts
from .checked_executor import CheckedExecutor, model_spec


def make_request(
    request_id, prompt=4, *, priority=0, tenant="", salt=b"", deadline=None, resume=None, media=(), **params
):
    """``prompt`` is token ids, or a length: then the ids differ from those of every other request id.

    ``media``: pictures and their offsets.
    """
    if isinstance(prompt, int):
        first = sum(request_id.encode()) * 7 % 31
        prompt = [2 + (first + at * at) % 37 for at in range(prompt)]
    params = {"ignore_eos": True, "max_tokens": 4} | params
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(**params),
        priority=priority,
        tenant=tenant,
        cache_salt=salt,
        deadline=deadline,
        resume=resume or {},
        media=tuple(MediaItem(picture, offset) for picture, offset in media),
    )


class Harness:
    """``step`` plans a step and takes its results; ``plan_ahead`` and ``take_result`` are its halves."""

    def __init__(
        self,
        *,
        blocks=64,
        block_size=4,
        prefix_caching=False,
        max_model_len=64,
        windows=(None,),
        window_chunks=False,
        drafts=None,
        states=0,
        vision=None,
        encoder_tokens=None,
        max_concurrent_steps=1,
        stages=1,
        **config,
    ):
        """``drafts``: the way of a ``ScriptedDrafter`` that adds drafts to the results of steps."""
        self.now = 0.0
        self.model = model_spec(max_model_len=max_model_len, vision=vision)
        self.config = SchedulerConfig(**{"max_num_batched_tokens": 64, "max_num_seqs": 16} | config)
        groups = group_layers(windows, chunked=window_chunks) if windows else ()
        size = KVCacheConfig(blocks, block_size, 1, groups, num_states=states)
        cache = CacheConfig(
            block_size=block_size, enable_prefix_caching=prefix_caching, encoder_cache_tokens=encoder_tokens
        )
        self.streams: dict[str, Stream] = {}
        self.scheduler = Scheduler(self.config, cache, size, self.model, lambda: self.now, stages=stages)
        kept = 0 if vision is None else encoder_cache_tokens(cache, self.config, vision)
        most = max(max_concurrent_steps, stages)
        self.executor = CheckedExecutor(self.model, size, self.config, most, stages, encoder_tokens=kept)
        self.checked = self.executor
        if drafts is not None:
            drafter = ScriptedDrafter(lambda: texts(self.streams), self.model.vocab_size, drafts)
            self.executor = DraftingExecutor(self.executor, drafter)
        self.waiting = []
        """Plans of steps in flight, and their results; oldest first."""
        self.plan = None
        """The last plan."""
        self.batch = []
        """(request id, choice, tokens) of the last plan, in order."""

    def add(self, *args, **kwargs):
        request = make_request(*args, **kwargs)
        self.checked.expect(request)
        self.scheduler.add(request)
        self.streams[request.request_id] = Stream(request, self.model)

    def cancel(self, request_id, choice=None, finish_reason=FinishReason.CANCELLED):
        ended = self.scheduler.cancel(request_id, choice, finish_reason)
        stream = self.streams.get(request_id)
        for each in stream.finish if stream else ():
            if stream.finish[each] is None and choice in (None, each):
                stream.cut[each] = finish_reason
                stream.finish[each] = "silent" if finish_reason is None else None
        return ended

    def sequence(self, request_id, choice=0):
        """What the scheduler knows of a choice."""
        return self.scheduler._lifecycle.groups[request_id].members[choice]

    @property
    def computed(self):
        """Computed tokens of the running sequences, in order of rank."""
        return [seq.num_computed for seq in self.scheduler._lifecycle.running]

    @property
    def planned(self):
        """(request id, choice) of the last plan, in order."""
        return [(name, choice) for name, choice, _ in self.batch]

    def plan_ahead(self):
        """Plan a step and submit it; the plan."""
        self.plan, self.batch = self.scheduler.schedule(), []
        if self.plan is not None:
            sequences = self.scheduler._lifecycle.in_flight[self.plan.step_id].sequences
            names = [(seq.group.request.request_id, seq.choice) for seq in sequences]
            self.batch = [(*name, count) for name, count in zip(names, self.plan.num_tokens, strict=True)]
            self.waiting.append((self.plan, self.executor.submit(self.plan)))
        return self.plan

    def take_result(self):
        """Take in the oldest step's results, if any; the outputs, checked against what the requests must come to."""
        outputs = self.scheduler.take_ended()
        if self.waiting:
            plan, pending = self.waiting.pop(0)
            outputs += self.scheduler.update(plan, pending.result())
        check_holders(self.scheduler)
        for output in outputs:
            stream = self.streams[output.request_id]
            if output.finish is not None and output.finish.finish_reason is FinishReason.DEADLINE:
                assert self.now >= stream.request.deadline
                stream.cut[output.choice] = FinishReason.DEADLINE
            stream.take(output)
        return outputs

    def take_results(self):
        while self.waiting:
            self.take_result()

    def step(self, count=1):
        """So many steps; the outputs of the last one by (request id, choice)."""
        for _ in range(count):
            self.plan_ahead()
            outputs = self.take_result()
        return {(output.request_id, output.choice): output for output in outputs}

    def next_batch(self):
        """One step; (request id, choice, tokens) of it, in order."""
        self.step()
        return self.batch

    def step_until(self, condition):
        for _ in range(500):
            if condition():
                return
            self.step()
        raise AssertionError("never came about")

    def step_until_preemption(self):
        self.step_until(lambda: self.scheduler.stats().preemptions)

    def finish(self):
        """Run until nothing is left; the tokens of each choice."""
        self.step_until(lambda: not self.scheduler.has_work())
        check_idle(self.scheduler)
        return {request_id: stream.tokens for request_id, stream in self.streams.items()}

    def order(self):
        """Run until nothing is left; the requests in the order in which they were first computed."""
        order = []
        while self.scheduler.has_work():
            self.step()
            order += [name for name, _ in self.planned if name not in order]
        return order

    def cached(self, *args, **kwargs):
        """Run a request to its end; its cached tokens."""
        self.add(*args, **kwargs)
        self.finish()
        return self.streams[args[0]].cached_tokens

    @property
    def used(self):
        return self.scheduler.stats().kv_blocks_used
