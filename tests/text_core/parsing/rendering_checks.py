"""Whether a published chat template is rendered as transformers renders it, in the form in which it wants calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from text_core.chat_templates import ChatTemplateError, ChatTemplates
from text_core.parsing.formats import NONE
from text_core.tools_as_text import tools_as_text

Message = dict[str, Any]
Calls = list[tuple[str, dict[str, Any]]]
"""Names and arguments of the calls of one message."""
SPECIAL: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TWO_CALLS: Calls = [("look_up", {"text": "null"}), ("weigh_things", {"text": "", "count": 1})]

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What is said"},
        "count": {"type": "integer", "description": "How many"},
        "share": {"type": "number", "description": "How much of it"},
        "whole": {"type": "boolean", "description": "Whether it is all"},
        "unit": {"type": "string", "enum": ["kilo", "stone"], "description": "Of what"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "What it is called"},
        "place": {
            "type": "object",
            "description": "Where",
            "properties": {
                "name": {"type": "string"},
                "at": {"type": "array", "items": {"type": "number"}},
                "inner": {"type": "object", "properties": {"open": {"type": "boolean"}, "code": {"type": "string"}}},
            },
        },
    },
    "required": ["text", "count"],
}
_LOOK_UP: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What to look for"}},
    "required": ["text"],
}
SCHEMAS = {"weigh_things": _PARAMETERS, "look_up": _LOOK_UP}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


@dataclass
class Checked:
    """What came of a template."""

    name: str
    calls: str = NONE
    """Its format of calls."""
    reasoning: str = NONE
    """Its format of reasoning."""
    tools: str = NONE
    """How a prompt shows tools: in the template's own form, or as text that is added."""
    prompts: int = 0
    """Prompts that equal those of transformers."""
    read: int = 0
    """Answers that are read back, however cut."""
    demanded: int = 0
    """Answers that the grammar of demanded calls allows."""
    notes: list[str] = field(default_factory=list)
    """What the template itself cannot do."""
    faults: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def calling(calls: Iterable[tuple[str, dict[str, Any]]], id_form: str = "call0000{}", **more: str) -> Message:
    """A message that calls tools; ``id_form``: with places for the call's number and the tool's name."""
    listed = [
        {"id": id_form.format(number, name), "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", **more, "tool_calls": listed}


def _result(number: int, name: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": name, "content": '{"is": "21"}'}


QUESTION: Message = {"role": "user", "content": "How heavy?"}
_SYSTEM: Message = {"role": "system", "content": "Be brief."}
_ANSWER: Message = {"role": "assistant", "content": "Very."}
_ONE = calling([("look_up", {"text": "x é"})])
_CHATS: dict[str, list[Message]] = {
    "a question": [QUESTION],
    "a system message": [_SYSTEM, QUESTION],
    "turns": [_SYSTEM, QUESTION, _ANSWER, {"role": "user", "content": " Why?\n"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
    "a call": [QUESTION, _ONE],
    "a call and its result": [_SYSTEM, QUESTION, _ONE, _result(0, "look_up")],
    "a text with a call": [QUESTION, {**_ONE, "content": "Let me see."}, _result(0, "look_up"), _ANSWER, QUESTION],
    "two calls": [QUESTION, calling(TWO_CALLS), _result(0, "look_up"), _result(1, "weigh_things")],
    "a reasoned call": [QUESTION, {**_ONE, "reasoning_content": "Hm.", "thinking": "Hm."}, _result(0, "look_up")],
}


def check_prompts(checked: Checked, templates: ChatTemplates, text: str) -> None:
    """Compare prompts of many chats; ``text``: the template's. What both refuse is not counted."""
    shows_calls = any("look_up" in shown for shown in _of_transformers(text, _CHATS["a call"], None, False))
    for (name, chat), tools, prompt in itertools.product(_CHATS.items(), (None, TOOLS), (False, True)):
        try:
            ours = templates.render(chat, tools=tools, add_generation_prompt=prompt)
        except ChatTemplateError as error:
            ours = f"refused: {error}"
        is_refused = ours.startswith("refused: ")
        expected = _of_transformers(text, chat, tools, prompt)
        if tools and any("Does look_up" in each for each in expected):
            checked.tools = "own"
        elif tools and not is_refused and not shows_calls and checked.calls == NONE:
            texts = [tools_as_text(chat, tools, in_system=in_system) for in_system in (True, False)]
            expected = [shown for chat in texts for shown in _of_transformers(text, chat, None, prompt)]
            checked.tools = "as text"
        if is_refused and not (expected and _of_transformers(text, chat, None, prompt)):  # some fail without tools
            continue
        if ours in expected or (not expected and "call" in name):  # some forms of calls only Ringline knows
            checked.prompts += 1
        else:
            checked.faults.append(f"{name}{', tools' if tools else ''}: rendered as …{ours[-200:]!r}")


def _of_transformers(text: str, chat: list[Message], tools: Any, prompt: bool) -> list[str]:
    """What transformers makes of a chat, in each form that some template wants of messages with calls."""
    forms = list(itertools.product((_empty, _null, _absent), (_objects, _texts)))
    rendered: list[str] = []
    for content, arguments in forms if any(message.get("tool_calls") for message in chat) else forms[:1]:
        given = [arguments(content(message)) if message.get("tool_calls") else message for message in chat]
        try:
            rendered += render_jinja_template(
                [given], tools=tools, chat_template=text, add_generation_prompt=prompt, **SPECIAL
            )[0]
        except Exception:  # templates can raise anything
            continue
    return list(dict.fromkeys(rendered))


def _empty(message: Message) -> Message:
    return message


def _null(message: Message) -> Message:
    return {**message, "content": message["content"] or None}


def _absent(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "content" or value}


def _objects(message: Message) -> Message:
    return message


def _texts(message: Message) -> Message:
    calls = []
    for call in message["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}
