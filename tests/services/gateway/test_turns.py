"""Turns of a conversation become messages that chat templates accept."""

from __future__ import annotations

from services.gateway.turns import Turns


def test_texts_of_one_role_are_one_message() -> None:
    turns = Turns()
    turns.system("Be kind.")
    turns.system("Be short.")
    turns.user("Hello")
    turns.user("there")
    assert turns.messages == [
        {"role": "system", "content": "Be kind.\nBe short."},
        {"role": "user", "content": "Hello\nthere"},
    ]


def test_a_late_text_of_the_system_stays_where_it_is() -> None:
    """The processor knows what the chat template takes."""
    turns = Turns()
    turns.user("Hello")
    turns.system("It is Monday.")
    turns.assistant("Hi")
    turns.system("It is Tuesday.")
    assert turns.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "It is Monday."},
        {"role": "assistant", "content": "Hi"},
        {"role": "system", "content": "It is Tuesday."},
    ]


def test_an_assistants_turn_is_one_message_and_each_result_its_own() -> None:
    turns = Turns()
    turns.reasoning("I could look")
    turns.reasoning("at both.")
    turns.assistant("Let me look.")
    turns.call("c1", "read", {"path": "a"})
    turns.call("c2", "read", '{"path": "b"}')
    turns.result("c1", "A")
    turns.result("c2", "B")
    turns.call("c3", "read", {})
    first, a, b, second = turns.messages
    assert first == {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning": "I could look\nat both.",
        "tool_calls": [
            {"id": "c1", "name": "read", "arguments": {"path": "a"}},
            {"id": "c2", "name": "read", "arguments": '{"path": "b"}'},
        ],
    }
    assert a == {"role": "tool", "tool_call_id": "c1", "content": "A"}
    assert b == {"role": "tool", "tool_call_id": "c2", "content": "B"}
    assert second == {"role": "assistant", "content": "", "tool_calls": [{"id": "c3", "name": "read", "arguments": {}}]}
