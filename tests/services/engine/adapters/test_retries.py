from __future__ import annotations

import errno
from itertools import pairwise

import pytest

from engine_core.errors import AdapterError
from services.engine.adapters.retries import FIRST_SECONDS, MOST_SECONDS, Retries, is_missing, may_pass


def test_each_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    retries, tried = Retries[str](), list[float]()
    retries.add("a")
    retries.add("b")
    while now < 100 + 4 * MOST_SECONDS:
        for thing, waited in retries.due().items():
            if thing == "a":
                tried.append(now)
                retries.add(thing, waited)
        now += 0.5
    assert tried[0] == 100 + FIRST_SECONDS
    waits = [second - first for first, second in pairwise(tried)]
    assert waits == sorted(waits)
    assert waits[0] == 2 * FIRST_SECONDS
    assert waits[-1] == MOST_SECONDS
    assert "a" in retries
    assert "b" not in retries, "nobody added it again"


def test_what_is_forgotten_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = Retries[str]()
    retries.add("a")
    retries.forget("a")
    retries.forget("b")
    monkeypatch.setattr("time.monotonic", lambda: float("inf"))
    assert retries.due() == {}


@pytest.mark.parametrize(
    ("cause", "passes", "missing"),
    [
        (OSError(errno.EIO, "input/output error"), True, False),
        (OSError(errno.EMFILE, "too many open files"), True, False),
        (MemoryError(), True, False),
        (FileNotFoundError(errno.ENOENT, "no such file"), True, True),
        (ValueError("no JSON"), False, False),
        (None, False, False),
    ],
)
def test_what_may_pass(cause: Exception | None, passes: bool, missing: bool) -> None:
    error, outer = AdapterError("file: damaged"), AdapterError("/a: file: damaged")
    error.__cause__, outer.__cause__ = cause, error
    assert (may_pass(outer), is_missing(outer)) == (passes, missing)
