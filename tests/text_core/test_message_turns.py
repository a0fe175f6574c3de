"""Chats for templates that refuse two messages of the user in a row, or one behind the result of a call."""

from __future__ import annotations

from typing import Any

import pytest

from text_core.chat_templates import ChatTemplateError, ChatTemplates, TemplateSource
from text_core.message_turns import in_turns

STRICT = (
    "{% set ns = namespace(user=true) %}{% for m in messages %}{% if m.role == 'user' or m.role == 'assistant' and "
    "not m.tool_calls %}{% if (m.role == 'user') != ns.user %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.user = not ns.user %}{% endif %}[{{ m.role }}{% for c in m.tool_calls or [] %} {{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}]{{ m.content or '' }}{% endfor %}{{ tools | length if tools }}"
)
"""As Mistral's, Gemma's and Llama 2's are."""
USER, AGAIN = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
RESULT = {"role": "tool", "content": "done", "tool_call_id": "1"}


def rendered(template: str, *chat: dict[str, Any], **options: Any) -> str:
    return ChatTemplates({"default": TemplateSource(template)}).render(list(chat), **options)


def test_what_the_user_says_again_or_behind_a_result_is_joined_to_it() -> None:
    assert rendered(STRICT, USER, AGAIN, CALL, RESULT, {**USER, "content": "go on"}) == (
        '[user]one\ntwo[assistant f{"a": 1}][tool]done\ngo on'
    )
    continued = [USER, {**USER, "content": "And"}]
    assert rendered(STRICT, *continued, add_generation_prompt=False, continue_final_message=True) == "[user]one\nAnd"


def test_a_template_that_takes_them_gets_them_as_they_are() -> None:
    lenient = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    assert rendered(lenient, USER, {**USER, "content": "two"}) == "[user]one[user]two"


def test_results_that_are_text_are_one_turn_with_what_follows() -> None:
    plain = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
        "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    text = rendered(plain, USER, CALL, RESULT, AGAIN, tools=tools)
    assert text.startswith("[user]# Tools")
    assert text.endswith("[user]<tool_response>\ndone\n</tool_response>\ntwo")


def test_a_template_that_takes_neither_says_what_is_wrong_with_the_chat_as_it_is() -> None:
    counting = "{{ raise_exception('%d messages' % messages | length) }}"
    with pytest.raises(ChatTemplateError, match="3 messages"):
        rendered(counting, USER, USER, USER)


def test_messages_without_content_stay() -> None:
    odd: list[dict[str, Any]] = [{"role": "user"}, {"role": "user", "content": None}, dict(USER)]
    assert in_turns(odd) == odd
    assert in_turns([]) == []
