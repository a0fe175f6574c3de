"""The formats of calls and of reasoning that a request chooses: the values of the engine's flags, vLLM's names too."""

from __future__ import annotations

from services.common.config.options import settings_of
from services.common.config.settings import AnswerSettings
from services.common.config.vllm_options import REASONING_PARSERS, TOOL_CALL_PARSERS
from services.gateway.http.api_error import invalid, shown

_CHOICES = {setting.name: setting.choices or () for setting in settings_of(AnswerSettings())}
_AUTO = "auto"


def chosen_formats(tool_call_parser: str | None, reasoning_parser: str | None) -> dict[str, str]:
    """Members of ``parse``; none for what is left to the model. Raises ``ApiError``."""
    chosen = {}
    for field, member, given, of_vllm in (
        ("tool_call_parser", "tool_calls", tool_call_parser, TOOL_CALL_PARSERS),
        ("reasoning_parser", "reasoning", reasoning_parser, REASONING_PARSERS),
    ):
        name = _AUTO if given is None else of_vllm.get(given, given)
        if name not in _CHOICES[field]:
            raise invalid(field, f"{shown(given)} is not known: expected one of {', '.join(map(str, _CHOICES[field]))}")
        if name != _AUTO:
            chosen[member] = name
    return chosen
