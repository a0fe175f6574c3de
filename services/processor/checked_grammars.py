"""Checks the grammars of a model's requests on its tokenizer, and remembers the outcomes."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from text_core.grammar.checker import GrammarChecker
from text_core.grammar.constraints import ConstraintError

MAX_REMEMBERED = 4096
"""Outcomes remembered, of about 200 bytes each."""


class CheckedGrammars:
    """Checks grammars and remembers outcomes by digest (LRU); thread-safe."""

    def __init__(self, checker: GrammarChecker, most: int = MAX_REMEMBERED) -> None:
        self.checker = checker
        self._most = most
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[bytes, tuple[str, str] | None] = OrderedDict()
        """Field and problem of an unusable grammar, None for a usable one; most recently used last."""

    def check(self, grammar: str) -> None:
        """Raises ``ConstraintError`` as the checker does."""
        digest = hashlib.blake2b(grammar.encode(), digest_size=16).digest()
        with self._lock:
            known = digest in self._outcomes
            if known:
                self._outcomes.move_to_end(digest)
                outcome = self._outcomes[digest]
        if not known:
            outcome = self._try(grammar)
            with self._lock:
                self._outcomes[digest] = outcome
                if len(self._outcomes) > self._most:
                    self._outcomes.popitem(last=False)
        if outcome is not None:
            raise ConstraintError(*outcome)

    def _try(self, grammar: str) -> tuple[str, str] | None:
        try:
            self.checker.check(grammar)
        except ConstraintError as error:
            return error.field, error.problem
        return None
