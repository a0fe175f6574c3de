"""The executor interface: the engine submits plans, and an executor computes them.

An executor has started its workers, and owns them. It computes the submitted plans in order. After ``ExecutorError`` it
computes nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_core.config import ModelSpec, RequestMemory
from engine_core.errors import InvalidRequestError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.step import StepPlan, StepResult


class PendingResult:
    """The future result of a submitted step. It may be asked again after an interrupt."""

    def __init__(self, take: Callable[[], StepResult]) -> None:
        """``take`` waits until the step is computed; it returns once."""
        self._take = take
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Wait until the step is computed. Raises ``ExecutorError``, as ``submit`` does."""
        if self._result is None:
            self._result = self._take()
        return self._result


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs that has a process of its own."""

    rank: str
    """As ``Rank`` writes itself."""
    host: str
    pid: int


class Executor(ABC):
    """Computes plans. Methods have only the side effects that their docstrings state."""

    model: ModelSpec
    kv_cache_config: KVCacheConfig
    unwritten_cache_bytes: int
    """Bytes of this process that the KV cache will still take as it fills."""
    step_bytes: int
    """Bytes of this process that the largest step takes; 0 if not measured."""
    request_memory: RequestMemory
    model_digest: str
    """Equal for executors of the same model, whatever their device and numerics."""
    numerics: str
    """Executors of equal digests compute equal tokens for equal requests."""
    largest_step_seconds: float
    """Approximate duration of the largest step."""
    max_concurrent_steps: int
    """The most steps that may be submitted before the first result is taken."""
    grammar_support: str | None = "this executor has none"
    """Why grammars cannot be used; None if they can."""
    ranks: Sequence[RankPlace] = ()
    """Empty if this process computes."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> PendingResult:
        """Compute a step after those submitted before; take the results in the same order.

        If several steps may be submitted, this returns before the step is computed. A step changes only the KV cache
        and the state of the plan's sequences. Raises ``ExecutorError`` with the cause chained, here or from
        ``PendingResult.result``; every callback of ``on_failure`` has run by then.
        """

    def compile_grammar(self, grammar: str) -> None:
        """Make sure that no step waits for ``grammar``, and that it can be used. From any thread; takes bounded time.

        What is compiled is kept while there is room, the grammars used last. A plan may bring others, which are
        compiled in its step. Raises ``InvalidRequestError``, or ``ExecutorError``.
        """
        raise InvalidRequestError("grammar", f"cannot be used here: {self.grammar_support}")

    def is_special_token(self, token_id: int) -> bool:
        """Whether grammars must name a token by its id, as no text contains it; needs ``grammar_support`` None."""
        raise InvalidRequestError("grammar", f"cannot be used here: {self.grammar_support}")

    @abstractmethod
    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Register a callback. It is called once, from any thread, when the executor fails, even while it is idle."""

    @abstractmethod
    def close(self) -> None:
        """Wait for submitted steps, then free weights and cache. Idempotent."""
