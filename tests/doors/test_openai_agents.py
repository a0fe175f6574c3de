"""openai-agents: agents that must call their tool, over chats and over responses."""

from __future__ import annotations

import pytest
from ringline import Generation

from tests.doors.clients import Shown, run_python
from tests.doors.door import Door

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_python("openai-agents", "openai_agents_python", door.api)


APIS = ("chat", "responses")


def test_run(shown: Shown, answer: Generation) -> None:
    assert shown("run") == dict.fromkeys(APIS, answer.content)


def test_stream(shown: Shown, answer: Generation) -> None:
    assert shown("stream") == dict.fromkeys(APIS, answer.content)


def test_tool_round_trip(shown: Shown) -> None:
    trip = shown("tool_round_trip")
    assert trip["chat"] == trip["responses"]
    assert len(trip["chat"]["called"]) == 1
    assert trip["chat"]["output"]


def test_structured(shown: Shown) -> None:
    structured = shown("structured")
    assert structured["chat"] == structured["responses"]
    assert set(structured["chat"]) == {"unit", "count"}
