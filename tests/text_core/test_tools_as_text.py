"""Tools for templates that have no place for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text_core import family_templates
from text_core.chat_templates import ChatTemplates, TemplateSource

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds é.", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": "é"}}}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Sum?"},
    {"role": "assistant", "content": "I add.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
    {"role": "tool", "content": "4", "tool_call_id": "c1"},
]
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN


def templates(text: str) -> ChatTemplates:
    return ChatTemplates({"default": TemplateSource(text)}, {"bos_token": "<s>", "eos_token": "</s>"})


def test_tools_are_described_before_all_else() -> None:
    rendered = templates(PLAIN).render(CHAT[:1], tools=TOOLS)
    assert rendered.startswith("<system># Tools")
    assert f"<tools>\n{json.dumps(TOOLS[0], ensure_ascii=False)}\n</tools>" in rendered
    assert rendered.endswith("<user>Sum?<assistant>")
    own = templates(PLAIN).render([{"role": "system", "content": "Be brief."}, *CHAT[:1]], tools=TOOLS)
    assert own.startswith("<system>Be brief.\n\n# Tools")
    parts = [{"role": "user", "content": [{"type": "text", "text": "Sum?"}]}]
    assert "Sum?" in templates(NO_SYSTEM).render(parts, tools=TOOLS)


def test_a_template_without_system_messages_has_them_in_the_first_one() -> None:
    rendered = templates(NO_SYSTEM).render(CHAT[:1], tools=TOOLS)
    assert rendered.startswith("<user># Tools")
    assert rendered.endswith("\n\nSum?<assistant>")


def test_a_template_that_drops_system_messages_shows_the_tools_all_the_same() -> None:
    drops = "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    rendered = templates(drops).render([{"role": "system", "content": "Be brief."}, *CHAT[:1]], tools=TOOLS)
    assert rendered.startswith("<user># Tools")


def test_calls_and_results_are_shown_as_the_model_is_to_write_and_read_them() -> None:
    rendered = templates(PLAIN).render(CHAT, tools=TOOLS)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'
    assert f"<assistant>I add.\n{call}\n{call}<user>" in rendered
    results = "<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>"
    assert rendered.endswith(f"<user>{results}<assistant>")


@pytest.mark.parametrize("name", ["GEMMA", "OLMO", "PHI_3", "PHI_4"])
def test_published_templates_without_tools_show_them(name: str) -> None:
    chat = templates(getattr(family_templates, name))
    assert chat.formats(None, has_tools=True)[0] == "hermes"
    assert chat.formats(None, has_tools=False)[0] == "none"
    rendered = chat.render(CHAT, tools=TOOLS)
    assert all(part in rendered for part in ("Adds é.", "<tool_call>", "<tool_response>\n3"))
    assert chat.render(CHAT[:1]) == chat.render(CHAT[:1], tools=[])
