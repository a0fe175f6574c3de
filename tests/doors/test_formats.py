"""A call in every format through the packages of openai and anthropic.

Both show the same arguments, as the schema has them, whole and streamed, and both go on with the result of the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from ringline import Client

from tests.doors.clients import ASKED, Shown, run_python
from tests.doors.door import Door
from text_core.parsing.formats import TOOL_FORMATS

pytestmark = pytest.mark.doors
TOOL = ASKED["typed_tool"]
REASONS = {"openai": "tool_calls", "anthropic": "tool_use"}


@pytest.fixture(scope="module")
def programs(door: Door, native: Client) -> dict[str, Shown]:
    return {
        "openai": run_python("openai", "formats_openai", door.api, *TOOL_FORMATS),
        "anthropic": run_python("anthropic", "formats_anthropic", door.url, native.models()[0].name, *TOOL_FORMATS),
    }


@pytest.mark.parametrize("client", REASONS)
def test_a_call_in_every_format(programs: dict[str, Shown], client: str, tried: Callable[[str], None]) -> None:
    tried(programs[client].client)
    for name in TOOL_FORMATS:
        trip = programs[client](name)
        assert trip["whole"] == trip["streamed"], name
        call = trip["whole"]
        assert (call["name"], call["why"]) == (TOOL["name"], REASONS[client]), name
        assert call["id"], name
        jsonschema.validate(_arguments(call), TOOL["parameters"])
        assert trip["second"], name


def test_both_clients_are_shown_the_same_calls(programs: dict[str, Shown]) -> None:
    for name in TOOL_FORMATS:
        openai, anthropic = (programs[client](name) for client in REASONS)
        assert json.dumps(_arguments(openai["whole"])) == json.dumps(_arguments(anthropic["whole"])), name
        assert openai["second"], name


def _arguments(call: dict[str, Any]) -> Any:
    """Arguments as an object: openai's package shows their text."""
    return json.loads(call["arguments"]) if isinstance(call["arguments"], str) else call["arguments"]
