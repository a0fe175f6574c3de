"""A checkpoint's regular expressions over names of layers, matched in bounded time.

``re`` would backtrack forever on patterns like ``(.*)*x``; ``regex`` has a timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import regex

from engine_core.errors import CheckpointError

PREFIX = "re:"
"""Marks patterns in compressed-tensors."""
_MOST_CHARACTERS = 2**16
_MOST_SECONDS = 10.0

Matches = Callable[[str], bool]


class NamePatterns:
    """Compiles the patterns of one checkpoint; error messages begin with ``method``."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._seconds_left = _MOST_SECONDS

    def matcher(self, pattern: str, *, anywhere: bool = False) -> Matches:
        """A function: whether a name matches from its beginning, or ``anywhere``; ``pattern`` may have the ``PREFIX``.

        Raises ``CheckpointError``, as does the returned function when matching has taken too long in total.
        """
        if len(pattern) > _MOST_CHARACTERS:
            raise self._refused(pattern, f"is longer than {_MOST_CHARACTERS} characters")
        try:
            compiled = regex.compile(pattern.removeprefix(PREFIX))
        except (regex.error, OverflowError, RecursionError) as error:
            raise self._refused(pattern, f"is not a regular expression: {error}") from error

        look = compiled.search if anywhere else compiled.match

        def matches(name: str) -> bool:
            started = time.monotonic()
            try:
                found = look(name, timeout=max(self._seconds_left, 1e-3)) is not None
            except TimeoutError as error:
                problem = f"and others take more than {_MOST_SECONDS:.0f} s to match names: use fewer repetitions"
                raise self._refused(pattern, problem) from error
            self._seconds_left -= time.monotonic() - started
            return found

        return matches

    def _refused(self, pattern: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._method}: {pattern!r:.80} in quantization_config {problem}")
