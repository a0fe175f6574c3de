"""Calls that are computed whole in a thread of their own."""

from __future__ import annotations

import threading

import pytest

from engine_core.errors import ClosedError
from engine_core.offline.call_thread import Call, CallThread


def test_calls_are_computed_in_order_and_raise_where_they_were_made() -> None:
    thread = CallThread("test")
    assert [thread.call(lambda call, i=i: i) for i in range(3)] == [0, 1, 2]  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda call: 1 // 0)
    assert thread.call(lambda call: call) == Call()
    thread.close()
    thread.close()
    with pytest.raises(ClosedError, match="is closed"):
        thread.call(lambda call: None)


def test_a_call_that_comes_as_the_thread_ends_does_not_wait_for_ever() -> None:
    thread = CallThread("test")
    thread._orders.put(None)  # as another thread does that closes it, behind the first look of this call

    def call() -> None:
        with pytest.raises(ClosedError, match="is closed"):
            thread.call(lambda call: None)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive()


def test_a_thread_ends_with_whoever_made_it() -> None:
    thread = CallThread("forgotten")
    running = next(each for each in threading.enumerate() if each.name == "forgotten")
    del thread
    running.join(60)
    assert not running.is_alive()
