"""What an engine tells of its queue: to those whom it refuses, when to come again; to an autoscaler, how long it is."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest

from engine_core.errors import QueueFullError
from engine_core.scheduling.stats import SchedulerStats
from engine_core.step import SequenceOutput
from services.engine.async_engine import AsyncEngine
from services.engine.step_loop import StepReport
from services.ring.errors import Refused, Status
from services.ring.identity import PeerId
from tests.services.ring.attach_harness import submission


class RecordingRegistry:
    """In the place of the attach registry."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []

    def refuse(self, core_id: str, status: Status) -> None:
        self.statuses.append(status)


@pytest.mark.parametrize(("waited", "expected"), [(None, 1000), (8.0, 4000), (0.001, 100), (1e6, 30_000)])
def test_it_is_told_by_how_long_the_request_waited_that_was_begun_last(waited: float | None, expected: int) -> None:
    engine = AsyncEngine(orphan_grace=1.0, max_ledgers=1)
    engine.registry = registry = RecordingRegistry()
    if waited is not None:
        engine.report(StepReport([SequenceOutput("a", 0, 0, [], [], queue_seconds=waited)]))
    engine.report(StepReport([], refused=[("b", QueueFullError("full"))] * 50))
    told = [status.retry_after_ms for status in registry.statuses]
    assert all(expected <= one <= 1.25 * expected for one in told)
    assert len(set(told)) > 1


def test_those_for_whom_there_is_no_memory_are_told_the_same() -> None:
    engine, peer = AsyncEngine(orphan_grace=1.0, max_ledgers=0), PeerId("p", 1)
    engine.report(StepReport([SequenceOutput("a", 0, 0, [], [], queue_seconds=8.0)]))
    engine.attach(peer)
    with pytest.raises(Refused) as refusal:
        engine.registry.submit(peer, submission())
    assert refusal.value.status.retry_after_ms is not None
    assert 4000 <= refusal.value.status.retry_after_ms <= 5000


def test_requests_that_wait_are_counted_once_whatever_choices_they_have() -> None:
    engine = AsyncEngine(orphan_grace=1.0, max_ledgers=0)
    values = {"running_seqs": 7, "waiting_reqs": 2, "returning_reqs": 1, "waiting_seqs": 300, "kv_blocks": 1}
    stats = SchedulerStats(**{field.name: values.get(field.name, 0) for field in fields(SchedulerStats)})
    engine.step_loop = SimpleNamespace(stats=stats, steps=0)
    assert engine.metrics.registry.get_sample_value("vllm:num_requests_waiting", {"model_name": ""}) == 3
