"""EngineCore: one step is schedule, execute, update, and everything that ended is told by the step that follows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine_core.config import CacheConfig, EngineConfig, ParallelConfig, SchedulerConfig
from engine_core.engine import EngineCore
from engine_core.errors import ExecutorError, InvalidRequestError, StandstillError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.request import Finish, FinishReason
from engine_core.scheduling import Scheduler
from tests.engine_core.scheduling.audit import Stream
from tests.engine_core.scheduling.checked_executor import CheckedExecutor, model_spec
from tests.engine_core.scheduling.harness import make_request


class Engine:
    def __init__(self, *, blocks=32, executor=CheckedExecutor, caching=True, ahead=1, stages=1, **scheduler):
        self.now = 0.0
        self.model = model_spec()
        config = EngineConfig(
            cache=CacheConfig(block_size=4, enable_prefix_caching=caching),
            scheduler=SchedulerConfig(**{"max_num_batched_tokens": 64, "max_num_seqs": 8} | scheduler),
            parallel=ParallelConfig(pipeline_parallel_size=stages),
        )
        size = KVCacheConfig(blocks, 4, 1)
        self.executor = executor(self.model, size, config.scheduler, max(ahead, stages), stages)
        self.core = EngineCore(config, self.executor, clock=lambda: self.now)

    def run(self, requests):
        """All requests to their end; tokens and finish by (request id, choice)."""
        streams = {request.request_id: Stream(request, self.model) for request in requests}
        for request in requests:
            self.core.add(request)
        while self.core.has_work():
            for output in self.core.step():
                streams[output.request_id].take(output)
        stats = self.core.stats()
        assert (stats.running_seqs, stats.waiting_seqs, stats.kv_blocks_used) == (0, 0, 0)
        assert self.core.step() == []
        return {
            (name, choice): (tuple(stream.tokens[choice]), finish)
            for name, stream in streams.items()
            for choice, finish in stream.finish.items()
        }


REQUESTS = [
    make_request(f"r{at}", 1 + at * 7 % 40, n=1 + at % 3, seed=at, max_tokens=5 + at, ignore_eos=False, priority=at % 2)
    for at in range(12)
]


def test_a_step_is_submitted_before_the_results_of_the_one_before_it_are_asked_for():
    engine = Engine(ahead=2)
    engine.core.add(make_request("a", max_tokens=3))
    in_flight = []
    while engine.core.has_work():
        in_flight.append((len(engine.core.step()), len(engine.executor.in_use)))
    assert in_flight == [(0, 1), (1, 1), (1, 1), (1, 0)]
    assert engine.core.stats().steps == 3


@pytest.mark.parametrize("stages", [2, 3])
def test_as_many_steps_are_in_flight_as_there_are_stages(stages):
    engine = Engine(stages=stages)
    for serial in range(2 * stages):
        engine.core.add(make_request(f"r{serial}", max_tokens=9))
    in_flight = []
    while engine.core.has_work():
        engine.core.step()
        in_flight.append(len(engine.executor.in_use))
    # ``step`` leaves room for one more, which the next call submits before it waits for the oldest.
    assert in_flight.count(stages - 1) > len(in_flight) // 2
    sizes = [len(plan.seq_ids) for plan in engine.executor.plans]
    assert sizes[: 1 + 7 * stages] == [2 * stages, *[2] * (7 * stages)]


def test_a_step_in_flight_is_work_until_its_results_are_in():
    engine = Engine(ahead=2)
    engine.core.add(make_request("a"))
    engine.core.step()
    assert engine.core.cancel("a", finish_reason=None)
    assert engine.core.stats().kv_blocks_used > 0
    assert engine.core.has_work()
    assert engine.core.step() == []
    assert engine.core.stats().kv_blocks_used == 0
    assert not engine.core.has_work()


class Interrupted(CheckedExecutor):
    """The first wait for a result is interrupted."""

    def submit(self, plan):
        pending, wait = super().submit(plan), self.wait
        return SimpleNamespace(result=lambda: (wait(), pending.result())[1])

    def wait(self):
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt

    interrupted = False


def test_an_interrupted_wait_loses_nothing():
    engine = Engine(ahead=2, executor=Interrupted)
    engine.core.add(make_request("a"))
    engine.core.step()
    with pytest.raises(KeyboardInterrupt):
        engine.core.step()
    assert engine.core.cancel("a", finish_reason=None)
    assert engine.run(REQUESTS) == Engine().run(REQUESTS)


def test_an_invalid_request_changes_nothing():
    engine = Engine()
    with pytest.raises(InvalidRequestError, match="temperature"):
        engine.core.add(make_request("a", temperature=-1.0))
    assert not engine.core.has_work()
    engine.core.add(make_request("a"))
    with pytest.raises(InvalidRequestError, match="request_id"):
        engine.core.add(make_request("a"))
    assert engine.core.stats().waiting_reqs == 1


def test_an_end_without_a_step_is_work_until_it_is_told():
    engine = Engine()
    engine.core.add(make_request("a"))
    assert engine.core.cancel("a")
    assert engine.core.has_work()
    (output,) = engine.core.step()
    assert (output.request_id, output.finish) == ("a", Finish(FinishReason.CANCELLED))
    assert not engine.core.has_work()
    assert not engine.core.cancel("a")
    assert engine.executor.plans == []


def test_ends_come_before_the_tokens_of_the_step_that_tells_them():
    engine = Engine()
    engine.core.add(make_request("a"))
    engine.core.add(make_request("b", n=2, deadline=1.0))
    engine.core.step()
    engine.now = 2.0
    assert [(output.request_id, output.finish and output.finish.finish_reason) for output in engine.core.step()] == [
        ("b", FinishReason.DEADLINE),
        ("b", FinishReason.DEADLINE),
        ("a", None),
    ]


def test_a_standstill_is_an_error_and_no_endless_wait(monkeypatch):
    engine = Engine()
    engine.core.add(make_request("a"))
    engine.core.step()
    monkeypatch.setattr(Scheduler, "schedule", lambda self: None)
    engine.core.add(make_request("b", n=2))
    with pytest.raises(StandstillError, match="2 choices wait, 1 run, and 1 of 32 KV blocks are held"):
        engine.core.step()


def test_what_waits_for_a_step_under_way_or_ends_is_no_standstill(monkeypatch):
    engine = Engine(ahead=2)
    engine.core.add(make_request("a"))
    engine.core.step()
    monkeypatch.setattr(Scheduler, "schedule", lambda self: None)
    engine.core.add(make_request("b"))
    engine.core.step()
    engine.core.cancel("a")
    assert [output.request_id for output in engine.core.step()] == ["a"]
    with pytest.raises(StandstillError):
        engine.core.step()


class Failing(CheckedExecutor):
    """Every step fails: at once or, where two may be in flight, when its result is asked for."""

    def submit(self, plan):
        super().submit(plan)
        return SimpleNamespace(result=self.fail) if self.max_concurrent_steps > 1 else self.fail()

    def fail(self):
        raise ExecutorError("the device is gone")


def test_a_step_that_fails_with_another_one_behind_it_is_the_callers_to_handle():
    engine = Engine(executor=Failing, ahead=2)
    engine.core.add(make_request("a"))
    begun = []
    assert engine.core.step(begun.extend) == []
    engine.core.add(make_request("b"))
    with pytest.raises(ExecutorError, match="the device is gone"):
        engine.core.step(begun.extend)
    assert begun == ["a", "b"]  # either may be what it died of
    assert len(engine.executor.plans) == 2
