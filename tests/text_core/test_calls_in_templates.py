"""Messages that call tools, as templates ask for them: by content that is null or empty, by calls that are defined, …

What transformers renders is the reference: it is given each message in the form that the template was written for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tests.text_core import chat_template_samples, family_templates
from text_core.chat_templates import ChatTemplateError, ChatTemplates, TemplateSource
from text_core.template_budget import TIME_LIMIT_S

Message = dict[str, Any]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ARGUMENTS = [{"city": "Zürich", "days": [1, 2]}, {}]
TEXTS = ['{"city": "Zürich", "days": [1, 2]}', "{}"]
TEMPLATES = {
    name: text
    for module in (family_templates, chat_template_samples)
    for name, text in vars(module).items()
    if name.isupper()
}
FORMS: dict[str, tuple[str | None, list[Any]]] = {"DEEPSEEK_V3": (None, TEXTS), "DEEPSEEK_V3_1": ("", TEXTS)}
"""What stands for missing content, and for the arguments of two calls, where it is not the empty text and mappings."""
PLAIN_FORM: tuple[str | None, list[Any]] = ("", list(ARGUMENTS))
NO_CALLS = {"GEMMA", "GRANITE", "OLMO", "PHI_3", "PHI_4", "SMOLLM_3", "BRACKETS", "DOCUMENTS"}
"""Templates that show no calls."""


def calls(arguments: list[Any]) -> list[Message]:
    return [
        {"id": f"c1234567{i}", "type": "function", "function": {"name": f"called_{i}", "arguments": each}}
        for i, each in enumerate(arguments)
    ]


def conversation(content: str | None, arguments: list[Any]) -> list[Message]:
    return [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": content, "tool_calls": calls(arguments)},
        {"role": "tool", "content": "21", "tool_call_id": "c12345670", "name": "called_0"},
    ]


def ours(template: str) -> Callable[..., str]:
    templates = ChatTemplates({"default": TemplateSource(template)}, SPECIAL)

    def render(chat: list[Message]) -> str:
        try:
            return templates.render(chat, add_generation_prompt=False)
        except ChatTemplateError:
            return "refused"

    return render


def theirs(template: str, chat: list[Message]) -> str:
    try:
        return str(render_jinja_template([chat], chat_template=template, **SPECIAL)[0][0])
    except Exception:
        return "refused"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_message_that_only_calls_tools_is_shown_as_its_template_wants_it(name: str) -> None:
    render = ours(TEMPLATES[name])
    missing, forms = FORMS.get(name, PLAIN_FORM)
    rendered = set()
    for count, content, end in itertools.product((1, 2), ("", "So be it."), (2, 3)):
        got = render(conversation(content, ARGUMENTS[:count])[:end])
        assert got == theirs(TEMPLATES[name], conversation(content or missing, forms[:count])[:end])
        rendered.add(got)
    assert any("called_0" in text for text in rendered) == (name not in NO_CALLS)
    if name not in NO_CALLS:
        assert "called_0" in render(conversation("", ARGUMENTS[:1])[:2])


CALL = "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
TEXT_CALL = "{% for c in m['tool_calls'] %}{{ c.function.name + c.function.arguments }}{% endfor %}"
CONDITIONS = [
    "{% if m.content is none %}CALL{% else %}{{ m.content }}{% endif %}",
    "{% if m['content'] is not none %}{{ m.content }}{% else %}CALL{% endif %}",
    "{% if m.get('content') == none %}CALL{% else %}{{ m.content }}{% endif %}",
    "{% set content = m.content %}{% if content is none %}CALL{% else %}{{ content }}{% endif %}",
    "{% if m.content is defined %}{{ m.content + '' }}{% endif %}{% if m.tool_calls is defined %}CALL{% endif %}",
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% endfor %}{% endif %}"
    "{% if 'tool_calls' in m %}CALL{% endif %}",
    "{% if 'tool_calls' in m and m['tool_calls'] is not none %}CALL{% else %}{{ m.content }}{% endif %}",
    "{{ m['content'] | trim }}{% if m.get('tool_calls') %}CALL{% endif %}",
    "{{ m.content or '' }}{% if m.tool_calls %}CALL{% endif %}",
    "{{ '</think>' in m.content }}{% if m.tool_calls is iterable %}CALL{% endif %}",
    "{{ m.content.strip() }}{{ m.name is defined }}{{ 'tool_call_id' in m }}{% if m.tool_calls %}CALL{% endif %}",
    "{{ m.reasoning_content is defined }}{{ 'thinking' in m }}{% if m.tool_calls | length > 0 %}CALL{% endif %}",
    "{% if m.content %}{{ m.content }}{% elif m.tool_calls %}CALL{% endif %}",
]
"""Conditions of published templates, with CALL in the place of what shows the calls."""


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("call", [CALL, TEXT_CALL])
def test_whatever_a_template_asks_it_shows_the_calls(condition: str, call: str) -> None:
    template = "{% for m in messages %}{% if m.role == 'assistant' %}" + condition + "{% endif %}{% endfor %}"
    template = template.replace("CALL", call)
    shown = ours(template)(conversation("", ARGUMENTS))
    assert "called_0" in shown
    assert "called_1" in shown
    forms = itertools.product(("", None), (ARGUMENTS, TEXTS))
    assert shown in [theirs(template, conversation(missing, arguments)) for missing, arguments in forms]


def test_arguments_that_a_template_prints_as_they_are_come_as_json() -> None:
    """Of a mapping, it would print Python's notation."""
    call = "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    template = "{% for m in messages %}{% if m.tool_calls %}" + call + "{% endif %}{% endfor %}"
    assert ours(template)(conversation("", ARGUMENTS)) == theirs(template, conversation("", TEXTS))


@pytest.mark.parametrize("name", sorted(set(TEMPLATES) - NO_CALLS))
def test_every_template_shows_arguments_that_are_no_object(name: str) -> None:
    assert "cut { off" in ours(TEMPLATES[name])(conversation("", ["cut { off"])[:2])


def test_arguments_that_are_no_object_are_shown_in_one_to_a_template_that_lists_them() -> None:
    listed = "{% for c in m.tool_calls %}{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}"
    template = "{% for m in messages %}{% if m.tool_calls %}" + listed + "{% endfor %}{% endif %}{% endfor %}"
    assert ours(template)(conversation("", [{"a": 1}, '{"b": '])[:2]) == '<a>1<arguments>{"b": '


def test_messages_that_are_no_calls_and_the_given_ones_stay_as_they_are() -> None:
    chat = [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "tool_calls": []}]
    assert ours("{% for m in messages %}{{ m.content is none }}{% endfor %}")(chat) == "FalseFalse"
    chat = conversation(None, ARGUMENTS)
    ours(TEMPLATES["DEEPSEEK_V3"])(chat)
    assert chat == conversation(None, ARGUMENTS)


def test_a_template_that_takes_long_is_tried_in_no_other_form(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, tried=0)

    def takes_long(*_: object) -> None:
        clock.now += TIME_LIMIT_S
        clock.tried += 1

    monkeypatch.setattr("text_core.chat_templates.time", SimpleNamespace(thread_time=lambda: clock.now))
    monkeypatch.setattr(ChatTemplates, "_shown_call", takes_long)
    shown = ours(TEMPLATES["GEMMA"])
    for _ in range(2):
        shown(conversation("x", ARGUMENTS))
    assert clock.tried == 1


def test_a_template_that_writes_a_turn_for_empty_content_is_given_none() -> None:
    """As that of DeepSeek-R1-Distill-Qwen."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}CALL</s>{% endif %}"
        "{% if m.role == 'assistant' and m.content is not none %}<a>{{ m.content }}</s>{% endif %}{% endfor %}"
    ).replace("CALL", CALL)
    render = ours(template)
    for content in ("", "So be it."):
        chat = conversation(content, ARGUMENTS[:1])
        assert render(chat) == theirs(template, conversation(content or None, ARGUMENTS[:1]))
