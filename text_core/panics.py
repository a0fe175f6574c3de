"""Converts panics of the ``tokenizers`` library, which is written in Rust, to errors.

PyO3 raises a panic as a ``BaseException``, so that it passes by handlers of errors: a thread or task would end, and
code that waits for its result would never return.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TokenizerPanic(RuntimeError):
    """The library panicked: it has a bug, or got input that it does not handle."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Context for calls of the library: raises ``TokenizerPanic`` for a panic."""
    try:
        yield
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":  # the class cannot be imported
            raise
        raise TokenizerPanic(f"the tokenizers library panicked: {panic}") from None
