"""Errors cross processes whole: whatever their constructors take."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from engine_core import errors
from engine_core.errors import EngineError

MADE = {
    "ConfigError": ("dtype", "fp7", "float32 or bfloat16"),
    "UnknownOptionError": ("dtyp", 3, "unknown option dtyp; did you mean dtype?"),
    "InvalidRequestError": ("max_tokens", "must be at least 1"),
    "ClosedError": (),
}
"""What constructors take that do not take a text."""


def kinds(kind: type[EngineError] = EngineError) -> Iterator[type[EngineError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


@pytest.mark.parametrize("kind", [each for each in kinds() if each.__module__ == errors.__name__])
def test_an_error_is_the_same_on_the_other_side(kind: type[EngineError]) -> None:
    error = kind(*MADE.get(kind.__name__, ("x" * 2000 + "\n",)))
    error.add_note("seen on rank tp1/2 pp0/1")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))
