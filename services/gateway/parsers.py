"""The formats of calls and of reasoning that a request chooses: the values of the engine's flags, vLLM's names too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from ringline.options import Parse

from services.common.config.options import settings_of
from services.common.config.settings import AnswerSettings
from services.common.config.vllm_options import REASONING_PARSERS, TOOL_CALL_PARSERS
from services.gateway.fields import supported
from services.gateway.http.api_error import invalid, shown

ToolCallParser = Annotated[str | None, supported("Format in which the model writes calls; default: the model's.")]
ReasoningParser = Annotated[
    str | None, supported("Format in which the model writes its reasoning; default: the model's.")
]

_CHOICES = {setting.name: setting.choices or () for setting in settings_of(AnswerSettings())}
_AUTO = "auto"


def chosen_formats(tool_call_parser: str | None, reasoning_parser: str | None) -> Parse:
    """Without what is left to the model. Raises ``ApiError``."""
    chosen: Parse = {}
    if (calls := _format("tool_call_parser", tool_call_parser, TOOL_CALL_PARSERS)) != _AUTO:
        chosen["tool_calls"] = calls
    if (reasoning := _format("reasoning_parser", reasoning_parser, REASONING_PARSERS)) != _AUTO:
        chosen["reasoning"] = reasoning
    return chosen


def _format(field: str, given: str | None, of_vllm: Mapping[str, str]) -> str:
    name = _AUTO if given is None else of_vllm.get(given, given)
    if name not in _CHOICES[field]:
        raise invalid(field, f"{shown(given)} is not known: expected one of {', '.join(map(str, _CHOICES[field]))}")
    return name
