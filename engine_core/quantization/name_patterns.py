"""Regular expressions over names of layers, which a checkpoint's configuration holds: matched in bounded time.

``re`` tries one way after the other, of which ``(.*)*x`` has more than any computer can try. So a pattern is refused
if it may have too many, and what all patterns of a checkpoint take together is limited.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from re import _constants as codes  # type: ignore[attr-defined]  # sre_constants and sre_parse are deprecated names
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from engine_core.errors import CheckpointError

PREFIX = "re:"
"""With which compressed-tensors marks patterns."""
_MOST_CHARACTERS = 2**16
_MOST_WAYS = 2**20
"""Of one pattern to match one name: they take about a second at worst."""
_MOST_TIMES = 40
"""That something may be repeated in a name, about."""
_MOST_SECONDS = 10.0

Matches = Callable[[str], bool]


class NamePatterns:
    """Compiles the patterns of one checkpoint; refusals begin with ``method``, which is for a person."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._seconds_left = _MOST_SECONDS

    def matcher(self, pattern: str) -> Matches:
        """Whether a name matches from its beginning; ``pattern`` may have the ``PREFIX``.

        Raises ``CheckpointError``, which the function returned does, too, when time is over.
        """
        if len(pattern) > _MOST_CHARACTERS:
            raise self._refused(pattern, f"is longer than {_MOST_CHARACTERS} characters")
        expression = pattern.removeprefix(PREFIX)
        try:
            compiled = re.compile(expression)
            ways, endless = _ways(parser.parse(expression))
        except (re.error, OverflowError, RecursionError) as error:
            raise self._refused(pattern, f"is no regular expression: {error}") from error
        if ways / math.factorial(min(endless, _MOST_TIMES)) > _MOST_WAYS:
            raise self._refused(pattern, "may take too long to match: use fewer repetitions, none within another")

        def matches(name: str) -> bool:
            started = time.thread_time()
            found = compiled.match(name) is not None
            self._seconds_left -= time.thread_time() - started
            if self._seconds_left < 0:
                raise self._refused(pattern, f"and others have taken more than {_MOST_SECONDS:.0f} s to match names")
            return found

        return matches

    def _refused(self, pattern: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._method}: {pattern!r:.80} in quantization_config {problem}")


def _ways(parsed: Any) -> tuple[float, int]:
    """At most as many ways there are to match, times the factorial of the second number: of repetitions without an end
    on one way, which take turns along the name.
    """
    ways, endless = 1.0, 0
    for code, arguments in parsed:
        own, own_endless = _ways_of(code, arguments)
        ways, endless = ways * own, endless + own_endless
    return ways, endless


def _ways_of(code: Any, arguments: Any) -> tuple[float, int]:
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        least, most = (min(int(each), _MOST_TIMES) for each in arguments[:2])
        once, endless = _ways(arguments[2])
        if once > 1:
            return (1 + once, endless) if most == 1 else (min(1 + once, _MOST_WAYS) ** most, 0)  # below 2⁸⁰⁰
        return most - least + 1.0, int(most == _MOST_TIMES)
    if code is codes.BRANCH:
        alternatives = [_ways(each) for each in arguments[1]]
        return sum(ways for ways, _ in alternatives), max(endless for _, endless in alternatives)
    if code is codes.SUBPATTERN:
        return _ways(arguments[3])
    if code is codes.ATOMIC_GROUP:
        return _ways(arguments)
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return _ways(arguments[1])
    if code is codes.GROUPREF_EXISTS:
        return _ways([(codes.BRANCH, (None, [arguments[1], arguments[2] or []]))])
    return 1.0, 0
