"""A busy engine says how busy it is, seldom; an idle one is silent."""

from __future__ import annotations

from ringline.engine.v1 import engine_pb2
from structlog.testing import capture_logs

from services.engine.load_log import LoadLog


def test_the_load_is_logged_while_steps_are_computed() -> None:
    busy = engine_pb2.Load(
        steps=9,
        generated_tokens=50,
        running_choices=3,
        waiting_requests=1,
        kv_usage=0.25,
        prefix_queries=8,
        prefix_hits=2,
    )
    later = engine_pb2.Load(steps=10, generated_tokens=51, prefix_queries=8, prefix_hits=2, preemptions=1)
    load_log = LoadLog(10.0, now=100.0)
    with capture_logs() as logs:
        for now, load in ((105.0, busy), (110.0, busy), (115.0, later), (120.0, busy), (130.0, later), (140.0, later)):
            load_log.beat(now, load)
    assert [(line["tokens_per_second"], line["prefix_hit_rate"], line["preemptions"]) for line in logs] == [
        (5.0, 0.25, 0),
        (0.1, None, 1),
    ]
    assert (logs[0]["running_choices"], logs[0]["waiting_requests"], logs[0]["kv_usage"]) == (3, 1, 0.25)


def test_guessed_tokens_are_logged_where_there_are_any() -> None:
    first = engine_pb2.Load(steps=1, draft_tokens=10, accepted_draft_tokens=7, accepted_by_position=[5, 2])
    later = engine_pb2.Load(steps=2, draft_tokens=14, accepted_draft_tokens=8, accepted_by_position=[6, 2])
    idle = engine_pb2.Load(steps=3, draft_tokens=14, accepted_draft_tokens=8, accepted_by_position=[6, 2])
    load_log = LoadLog(10.0, now=0.0)
    with capture_logs() as logs:
        for now, load in ((10.0, first), (20.0, later), (30.0, idle)):
            load_log.beat(now, load)
        LoadLog(10.0, now=0.0).beat(10.0, engine_pb2.Load(steps=1))
    assert [line.get("accepted_drafts") for line in logs] == [0.7, 0.25, None, None]
    assert ["accepted_drafts" in line for line in logs] == [True, True, True, False]


def test_without_an_interval_nothing_is_logged() -> None:
    load_log = LoadLog(0.0, now=0.0)
    with capture_logs() as logs:
        load_log.beat(100.0, engine_pb2.Load(steps=1, generated_tokens=1))
    assert logs == []
