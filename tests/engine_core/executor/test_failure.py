"""The failure of an executor: the first error counts, and each callback is called with it once."""

from __future__ import annotations

from engine_core.errors import ExecutorError
from engine_core.executor.failure import Failure


def test_the_first_error_counts_and_is_told_once() -> None:
    failure, told = Failure(), []
    failure.on_failure(lambda error: told.append(("before", str(error))))
    assert failure.set(ExecutorError("a worker has gone"))
    assert not failure.set(ExecutorError("another has gone"))
    failure.on_failure(lambda error: told.append(("between", str(error))))
    assert told == []
    failure.tell()
    failure.on_failure(lambda error: told.append(("after", str(error))))
    assert told == [(when, "a worker has gone") for when in ("before", "between", "after")]
    assert str(failure.told(0.0)) == "a worker has gone"
