"""Tools for a template that has no place for them: described in the prompt, and called as Hermes and Qwen call them.

Most models have seen that form. Earlier calls and their results become text of it, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from text_core.system_messages import merged

FORMAT = "hermes"
"""The format of calls, of ``text_core.parsing.formats``."""
_INSTRUCTIONS = """\
# Tools

Answer directly, or call some of these functions:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as JSON between <tool_call> and </tool_call>, each call by itself:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
The results come between <tool_response> and </tool_response>."""

_Chat = list[dict[str, Any]]


def tools_as_text(chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, in_system: bool) -> _Chat:
    """``chat`` with ``tools`` described in its first message, and with calls and results as text.

    ``in_system``: that is a system message, added if there is none; else the first that is none, as the template shows
    no system messages.
    """
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=lines)
    messages = _with_results_joined([_as_text(message) for message in chat])
    is_systems = [message.get("role") in ("system", "developer") for message in messages]
    if not in_system and not all(is_systems):
        first = is_systems.index(False)
        messages[first] = _with_text(messages[first], instructions + "\n\n", before=True)
    elif is_systems[0]:
        messages[0] = _with_text(messages[0], "\n\n" + instructions)
    else:
        messages.insert(0, {"role": "system", "content": instructions})
    return messages


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    shown = "\n".join(f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls)
    content = _text(message.get("content"))
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": f"{content}\n{shown}" if content else shown}


def _call(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    named = {"name": function.get("name"), "arguments": function.get("arguments")}
    return json.dumps(named, ensure_ascii=False)


def _with_results_joined(chat: _Chat) -> _Chat:
    """Results that follow each other are one message: many templates want users and assistants in turns."""
    turns: list[_Chat] = []
    for message in chat:
        if turns and _is_result(message) and _is_result(turns[-1][-1]):
            turns[-1].append(message)
        else:
            turns.append([message])
    return [turn[0] if len(turn) == 1 else merged(turn) for turn in turns]


def _is_result(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return message.get("role") == "user" and isinstance(content, str) and content.startswith("<tool_response>")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _with_text(message: Mapping[str, Any], text: str, *, before: bool = False) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        part = [{"type": "text", "text": text}]
        return {**message, "content": part + content if before else content + part}
    own = content or ""
    return {**message, "content": (text + own if before else own + text).strip("\n")}
