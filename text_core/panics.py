"""Converts panics of ``tokenizers`` and ``llguidance``, which are written in Rust, to errors.

PyO3 raises a panic as a ``BaseException``, which bypasses error handlers: a thread or task would end, and code that
waits for its result would never return.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TokenizerPanic(RuntimeError):
    """The library panicked, because of a bug or input that it does not handle."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise ``TokenizerPanic`` if a call of the library within this context panics."""
    try:
        yield
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":  # the class cannot be imported
            raise
        raise TokenizerPanic(f"the library panicked: {panic}") from None
