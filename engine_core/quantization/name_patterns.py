"""Regular expressions over names of layers, which a checkpoint's configuration holds: matched in bounded time.

``re`` tries one way after the other, of which ``(.*)*x`` has more than any computer can try; ``regex`` stops in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import regex

from engine_core.errors import CheckpointError

PREFIX = "re:"
"""With which compressed-tensors marks patterns."""
_MOST_CHARACTERS = 2**16
_MOST_SECONDS = 10.0

Matches = Callable[[str], bool]


class NamePatterns:
    """Compiles the patterns of one checkpoint; refusals begin with ``method``, which is for a person."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._seconds_left = _MOST_SECONDS

    def matcher(self, pattern: str, *, anywhere: bool = False) -> Matches:
        """Whether a name matches from its beginning, or ``anywhere``; ``pattern`` may have the ``PREFIX``.

        Raises ``CheckpointError``, which the function returned does, too, when time is over.
        """
        if len(pattern) > _MOST_CHARACTERS:
            raise self._refused(pattern, f"is longer than {_MOST_CHARACTERS} characters")
        try:
            compiled = regex.compile(pattern.removeprefix(PREFIX))
        except (regex.error, OverflowError, RecursionError) as error:
            raise self._refused(pattern, f"is no regular expression: {error}") from error

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
