"""The executor interface: the engine submits plans, and an executor computes them.

Constructing an executor is cheap. ``start`` is called once; then the executor computes the submitted plans in order. It
owns its workers. After ``ExecutorError`` it computes nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine_core.config import ModelSpec, RequestMemory
from engine_core.errors import InvalidRequestError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult


class PendingResult(Protocol):
    """The future result of a submitted step."""

    def result(self) -> StepResult:
        """Wait until the step is computed. Raises ``ExecutorError``, as ``submit`` does."""


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
    """Known after ``start``."""
    kv_cache_config: KVCacheConfig
    """Known after ``start``."""
    unwritten_cache_bytes: int
    """Known after ``start``: bytes of this process that the KV cache will still take as it fills."""
    step_bytes: int
    """Known after ``start``: bytes of this process that the largest step takes; 0 if not measured."""
    request_memory: RequestMemory
    """Known after ``start``."""
    model_digest: str
    """Known after ``start``: equal for executors of the same model, whatever their device and numerics."""
    numerics: str
    """Known after ``start``: executors of equal digests compute equal tokens for equal requests."""
    largest_step_seconds: float
    """Known after ``start``: approximate duration of the largest step."""
    max_concurrent_steps: int
    """Known after ``start``: the most steps that may be submitted before the first result is taken."""
    grammar_support: str | None = "this executor has none"
    """Known after ``start``: why grammars cannot be used; None if they can."""
    ranks: Sequence[RankPlace] = ()
    """Known after ``start``; empty if this process computes."""

    @abstractmethod
    def start(self, progress: StartupProgress) -> None:
        """Load, profile, allocate and warm up, reporting each stage. Closes itself if it raises (``EngineError``)."""

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
