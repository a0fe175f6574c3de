"""What waits for the engine core takes no more room than the requests that it is about."""

from __future__ import annotations

import pytest

from services.engine.step_loop import MAX_CALLS, Inbox, RequestCommands, TooManyCalls
from tests.engine_core.scheduling.harness import make_request


def test_orders_are_taken_in_the_order_in_which_they_came() -> None:
    inbox, told = Inbox(), []
    first, second = make_request("a"), make_request("b")
    inbox.add("a", first)
    assert inbox.cancel("c", None)
    inbox.add("b", second)
    assert inbox.cancel("a", 1)
    inbox.call(lambda: told.append(1))
    assert inbox
    commands = inbox.take()
    assert list(commands.requests.items()) == [
        ("a", RequestCommands(first, {1})),
        ("c", RequestCommands(None, {None})),
        ("b", RequestCommands(second)),
    ]
    (call,) = commands.calls
    call()
    assert told == [1]
    assert not inbox
    assert not inbox.take()


def test_what_is_cancelled_before_it_was_taken_was_never_there() -> None:
    inbox = Inbox()
    for index in range(100):
        inbox.add(f"r{index}", make_request(f"r{index}"))
        for choice in range(10):
            assert inbox.cancel(f"r{index}", choice), "the rest of it is wanted"
        assert not inbox.cancel(f"r{index}", None)
    assert not inbox


def test_who_cancels_again_adds_nothing() -> None:
    inbox = Inbox()
    for _ in range(100):
        for choice in (0, 1):
            assert inbox.cancel("a", choice)
    assert inbox.take().requests == {"a": RequestCommands(None, {0, 1})}
    for choice in (0, None, 1, None):
        assert inbox.cancel("a", choice)
    assert inbox.take().requests == {"a": RequestCommands(None, {None})}


def test_calls_are_bounded() -> None:
    inbox = Inbox()
    for _ in range(MAX_CALLS):
        inbox.call(lambda: None)
    with pytest.raises(TooManyCalls):
        inbox.call(lambda: None)
    assert len(inbox.take().calls) == MAX_CALLS
    inbox.call(lambda: None)
