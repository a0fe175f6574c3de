"""Messages of the system that are not the first: what a template does not show where it stands is merged or moved."""

from __future__ import annotations

from typing import Any

import pytest

from text_core.chat_templates import ChatTemplateError, ChatTemplates, TemplateSource

_TURN = "{{ '<' ~ message.role ~ '>' ~ message.content }}"
_ALTERNATE = (
    "{% for message in turns | rejectattr('tool_calls', 'defined') | rejectattr('role', 'equalto', 'tool') %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}{% endif %}"
    "{% endfor %}"
)
_FIRST = "{% if messages[0].role == 'system' %}{{ '<system>' ~ messages[0].content }}{% endif %}"
_REST = "{% set turns = messages[1:] if messages[0].role == 'system' else messages %}"
_NO_SYSTEM = "{% for message in messages %}{% if message.role not in ('user', 'assistant', 'tool') %}"

ANYWHERE = "{% for message in messages %}" + _TURN + "{% endfor %}"
ONLY_FIRST = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('first only') }}{% endif %}" + _TURN + "{% endfor %}"
)
OTHERS_DROPPED = (
    _FIRST + _REST + "{% for message in turns if message.role != 'system' %}" + _TURN + "{% endfor %}"
)  # as SmolLM3's
IN_TURNS = OTHERS_DROPPED.replace(_REST, _REST + _ALTERNATE)  # as Mistral's
NEVER = _NO_SYSTEM + "{{ raise_exception('no system') }}{% endif %}" + _TURN + "{% endfor %}"
DROPPED = _NO_SYSTEM + "{% else %}" + _TURN + "{% endif %}{% endfor %}"


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


ANSWER = {"role": "assistant", "content": "Hm"}
RESULT = {"role": "tool", "content": "21"}
REMINDED = [system("A"), user("Hi"), ANSWER, system("B"), user("So")]
TWO = [system("A"), system("B"), user("Hi")]
AFTER = [user("Hi"), system("A"), ANSWER, system("B")]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
AFTER_CALL = [user("Hi"), CALL, RESULT, system("B")]
AFTER_RESULT = [user("Hi"), ANSWER, RESULT, system("A")]


@pytest.mark.parametrize(
    ("template", "chat", "prompt"),
    [
        (ANYWHERE, REMINDED, "<system>A<user>Hi<assistant>Hm<system>B<user>So"),
        (ANYWHERE, TWO, "<system>A<system>B<user>Hi"),
        *(
            (template, chat, prompt)
            for template in (ONLY_FIRST, OTHERS_DROPPED, IN_TURNS)
            for chat, prompt in (
                (REMINDED, "<system>A<user>Hi<assistant>Hm<user>B\nSo"),
                (TWO, "<system>A\nB<user>Hi"),
                (AFTER, "<user>Hi\nA<assistant>Hm<user>B"),
            )
        ),
        (ONLY_FIRST, AFTER_RESULT, "<user>Hi<assistant>Hm<tool>21<user>A"),
        *((template, TWO, "<user>A\nB\nHi") for template in (NEVER, DROPPED)),
        (NEVER, REMINDED, "<user>A\nHi<assistant>Hm<user>B\nSo"),
        (IN_TURNS, [user("Hi"), system("A"), user("So")], "<user>Hi\nA\nSo"),
        (IN_TURNS, [system("A"), *AFTER_CALL], "<system>A\nB<user>Hi<assistant><tool>21"),
        (ONLY_FIRST, [user([{"text": "Hi"}]), system("A")], "<user>[{'text': 'Hi'}, {'type': 'text', 'text': 'A'}]"),
    ],
)
def test_what_the_system_says_is_shown_in_the_way_of_the_template(
    template: str, chat: list[dict[str, Any]], prompt: str
) -> None:
    templates = ChatTemplates({"default": TemplateSource(template)})
    given = [dict(message) for message in chat]
    assert templates.render(chat, add_generation_prompt=False) == prompt
    assert chat == given, "the caller's messages stay as they were"


def test_a_developers_message_is_one_of_the_system() -> None:
    """Where the template knows the role, it keeps it."""
    chat = [user("Hi"), {"role": "developer", "content": "A"}]
    for template, prompt in ((ANYWHERE, "<user>Hi<developer>A"), (NEVER, "<user>Hi\nA")):
        assert ChatTemplates({"default": TemplateSource(template)}).render(chat) == prompt


def test_a_template_that_takes_no_chat_like_this_says_why() -> None:
    templates = ChatTemplates({"default": TemplateSource(IN_TURNS)})
    with pytest.raises(ChatTemplateError, match="take turns"):
        templates.render([user("Hi"), user("So"), ANSWER, system("A")])


def test_a_chat_is_never_another_prompt_because_time_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = ChatTemplates({"default": TemplateSource(OTHERS_DROPPED)})
    monkeypatch.setattr("text_core.chat_templates.TIME_LIMIT_S", -1)
    with pytest.raises(ChatTemplateError, match="put them first"):
        templates.render(REMINDED)
    assert templates.render(REMINDED[:3], add_generation_prompt=False) == "<system>A<user>Hi<assistant>Hm"


SYSTEM_FIRST = (
    "{% for message in messages if message.role == 'system' %}" + _TURN + "{% endfor %}"
    "{% for message in messages if message.role != 'system' %}" + _TURN + "{% endfor %}"
)  # as DeepSeek R1's
_PART = "{{ '#' if part.type == 'image' else part.text }}"
SEEING = SYSTEM_FIRST.replace(_TURN, f"{{% for part in message.content %}}{_PART}{{% endfor %}}")


@pytest.mark.parametrize("template", [SYSTEM_FIRST, SEEING])
def test_pictures_keep_their_order_or_are_refused(template: str) -> None:
    """A prompt's placeholders are filled in the order in which the messages have pictures."""
    templates = ChatTemplates({"default": TemplateSource(template)})
    one, two = ([{"type": "image"}, {"type": "text", "text": text}] for text in ("ONE", "TWO"))
    for chat in ([user(one), ANSWER, system(two), user("So")], [system(one), user("Hi"), ANSWER, user(two)]):
        prompt = templates.render(chat, placeholder="#")
        assert prompt.index("#") < prompt.index("ONE") < prompt.rindex("#") < prompt.index("TWO")
    refusal = "{{ raise_exception('no turn of the user') }}"
    strict = template + "{% if messages[1:] and messages[-1].role == 'user' %}" + refusal + "{% endif %}"
    templates = ChatTemplates({"default": TemplateSource(strict)})
    assert "B" in templates.render([user(one), ANSWER, RESULT, system("B")], placeholder="#")
    with pytest.raises(ChatTemplateError, match="moves pictures"):
        templates.render([user(one), ANSWER, RESULT, system(two)], placeholder="#")
