"""Each service logs one line per request when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from services.ring.errors import invalid_field
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import Ring, ask


def lines(logs: list[Any], event: str) -> list[Mapping[str, Any]]:
    return [entry for entry in logs if entry["event"] == event]


def test_the_end_of_a_request_is_logged_by_detokenizer_and_processor() -> None:
    with capture_logs() as logs:
        world = Ring(["engine-0"], ["detokenizer-0"])
        call = world.ask(ask(max_tokens=7, n=2))
        world.settle()
    by_detokenizer, by_processor = lines(logs, "request finished")
    for line in (by_detokenizer, by_processor):
        assert line["log_level"] == "debug"
        assert line["request_id"] == call.request_id
        assert line["finish_reasons"] == {0: "LENGTH", 1: "LENGTH"}
        assert line["completion_tokens"] == 14
    assert by_detokenizer["epoch"] == 1
    assert by_processor["client_request_id"] == "r"
    assert by_processor["prompt_tokens"] == 2


def test_a_cancelled_request_is_logged_with_what_was_delivered() -> None:
    with capture_logs() as logs:
        world = Ring(["engine-0"], ["detokenizer-0"])
        call = world.ask(ask())
        for _ in range(3):
            world.flow(tokens=1)
        delivered = call.delivery.completion_tokens
        world.in_flight.end(call, FinishReason.CANCELLED)
        world.settle()
    by_processor, by_detokenizer = lines(logs, "request finished")
    assert by_processor["finish_reasons"] == {0: "CANCELLED"}
    assert by_processor["completion_tokens"] == delivered > 0
    assert by_detokenizer["finish_reasons"] == {0: None}


def test_a_refused_request_is_logged_by_the_processor_alone() -> None:
    with capture_logs() as logs:
        world = Ring(["engine-0"], ["detokenizer-0"])
        call = world.receive(ask())
        world.in_flight.end(call, FinishReason.ERROR, invalid_field("temperature", "-1 is out of range").status)
    (line,) = lines(logs, "request refused")
    assert (line["code"], line["reason"], line["field"]) == ("INVALID_ARGUMENT", "INVALID_FIELD", "temperature")
    assert (line["request_id"], line["client_request_id"]) == (call.request_id, "r")
