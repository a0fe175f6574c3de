"""A scheduler with a checked executor, small enough to reason about by hand: blocks of 4 tokens, 64 tokens at most."""

from __future__ import annotations

from engine_core.config import CacheConfig, SchedulerConfig
from engine_core.kv_cache_interface import KVCacheConfig, group_layers
from engine_core.request import FinishReason, Request, SamplingParams
from engine_core.scheduling import Scheduler

from .audit import Stream, check_holders, check_idle
from .checked_executor import CheckedExecutor, model_spec


def make_request(request_id, prompt=4, *, priority=0, tenant="", salt=b"", deadline=None, resume=None, **params):
    """``prompt`` is token ids, or a length: then the ids differ from those of every other request id."""
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
    )


class Harness:
    max_concurrent_steps = 1

    def __init__(self, *, blocks=64, block_size=4, prefix_caching=False, max_model_len=64, windows=(None,), **config):
        self.now = 0.0
        self.model = model_spec(max_model_len=max_model_len)
        self.config = SchedulerConfig(**{"max_num_batched_tokens": 64, "max_num_seqs": 16} | config)
        size = KVCacheConfig(blocks, block_size, 1, group_layers(windows))
        cache = CacheConfig(block_size=block_size, enable_prefix_caching=prefix_caching)
        self.scheduler = Scheduler(self.config, cache, size, self.model, clock=lambda: self.now)
        self.executor = CheckedExecutor(self.model, size, self.config, self.max_concurrent_steps)
        self.streams: dict[str, Stream] = {}
        self.plan = None
        """The last plan."""
        self.batch = []
        """(request id, choice, tokens) of the last plan, in order."""

    def add(self, *args, **kwargs):
        request = make_request(*args, **kwargs)
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

    def step(self):
        """One step; its outputs by (request id, choice), checked against what the requests must come to."""
        self.plan, self.batch = self.scheduler.schedule(), []
        outputs = self.scheduler.take_ended()
        if self.plan is not None:
            planned = self.scheduler._sequences.in_flight[self.plan.step_id].sequences
            names = [(seq.group.request.request_id, seq.choice) for seq in planned]
            self.batch = [(*name, count) for name, count in zip(names, self.plan.num_tokens, strict=True)]
            outputs += self.scheduler.update(self.plan, self.executor.submit(self.plan).result())
        check_holders(self.scheduler)
        for output in outputs:
            stream = self.streams[output.request_id]
            if output.finish is not None and output.finish.finish_reason is FinishReason.DEADLINE:
                assert self.now >= stream.request.deadline
                stream.cut[output.choice] = FinishReason.DEADLINE
            stream.take(output)
        return {(output.request_id, output.choice): output for output in outputs}

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

    @property
    def used(self):
        return self.scheduler.stats().kv_blocks_used
