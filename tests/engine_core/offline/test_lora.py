"""Adapters of ``LLM`` that cannot be loaded: the calls that follow are as if they had not been asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine_core.errors import AdapterError
from engine_core.lora.adapter import AdapterFile
from engine_core.offline.lora import Adapters, Live, OpenAdapter
from engine_core.request import Request, SamplingParams


class FakeExecutor:
    """Loads adapters but those whose path is ``bad``."""

    def __init__(self, max_loras: int, max_loaded: int) -> None:
        self.lora = SimpleNamespace(max_loras=max_loras, max_loaded=max_loaded, max_bytes=100)
        self.loaded: dict[int, str] = {}

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        if path == "bad":
            raise AdapterError("bad has changed")
        self.loaded[adapter_id] = path
        assert len(self.loaded) <= self.lora.max_loaded

    def unload_adapter(self, adapter_id: int) -> None:
        del self.loaded[adapter_id]


def live(request_id: str, path: str) -> Any:
    request = Request(request_id, (1,), SamplingParams(max_tokens=1))
    return SimpleNamespace(request=request, adapter=OpenAdapter(path, AdapterFile(path, 10, 8, "")), queued_ts=0.0)


def begun(found: list[Live]) -> list[str]:
    assert all(each.request.adapter is not None for each in found)
    return [each.request.request_id for each in found]


@pytest.mark.parametrize(("max_loras", "max_loaded"), [(1, 1), (1, 2), (2, 2)])
def test_others_get_room_after_an_adapter_that_was_not_loaded(max_loras: int, max_loaded: int) -> None:
    executor = FakeExecutor(max_loras, max_loaded)
    adapters = Adapters(executor)  # type: ignore[arg-type]
    first = [live(str(number), path) for number, path in enumerate(("a", "b", "bad", "c", "d", "bad", "e"))]
    running: list[str] = []

    def go_on() -> None:
        for each in first:
            running.extend(begun(adapters.add(each)))
        while running:
            running.extend(begun(adapters.end(running.pop(0))))

    with pytest.raises(AdapterError, match="bad has changed"):
        go_on()
    adapters.forget([each.request.request_id for each in first])
    for number, path in enumerate("abcde"):
        request_id = f"again {number}"
        assert begun(adapters.add(live(request_id, path))) == [request_id]
        assert adapters.end(request_id) == []
