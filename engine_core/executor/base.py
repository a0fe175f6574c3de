"""The executor interface: the engine submits plans, and an executor computes them.

An executor owns its workers, which have started. It computes the submitted plans in order; after ``ExecutorError``,
nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_core.config import ModelSpec, RequestMemory
from engine_core.errors import AdapterError, InvalidRequestError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.lora.support import LoRASupport
from engine_core.media import Picture
from engine_core.speculation import ASSUMED_STEP_TIMES, StepTimes
from engine_core.step import StepPlan, StepResult


class PendingResult:
    """The future result of a submitted step. ``result`` may be called again after an interrupt."""

    def __init__(self, take: Callable[[], StepResult]) -> None:
        """``take`` waits until the step is computed; it returns only once."""
        self._take = take
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Wait until the step is computed. Raises ``ExecutorError``, as ``submit`` does."""
        if self._result is None:
            self._result = self._take()
        return self._result


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank with its own process runs."""

    rank: str
    """``str`` of the ``Rank``."""
    host: str
    pid: int


class Executor(ABC):
    """Computes plans. Methods have only the side effects that their docstrings state."""

    model: ModelSpec
    kv_cache_config: KVCacheConfig
    unwritten_cache_bytes: int
    """Bytes that the KV cache will still take in this process as it fills."""
    step_bytes: int
    """Bytes that the largest step takes in this process; 0 if not measured."""
    request_memory: RequestMemory
    model_digest: str
    """Equal for executors of the same model, whatever their device and numerics."""
    numerics: str
    """Executors of equal digests compute equal tokens for equal requests."""
    largest_step_seconds: float
    """Approximate duration of the largest step."""
    step_times: StepTimes = ASSUMED_STEP_TIMES
    """Of steps that decode; measured if drafters propose tokens."""
    max_concurrent_steps: int
    """Most steps that may be submitted before the first result is taken."""
    grammar_support: str | None = "this executor has none"
    """Why grammars cannot be used; None if they can."""
    picture_facts: Mapping[str, Any] | None = None
    """What a processor must know to prepare pictures, for JSON; None if the model takes none."""
    lora: LoRASupport | None = None
    """What adapters there may be; None: none."""
    ranks: Sequence[RankPlace] = ()
    """Empty if this process computes."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> PendingResult:
        """Compute a step after those submitted before; take the results in the same order.

        If several steps may be submitted, returns before the step is computed. A step changes only the KV cache and
        the state of the plan's sequences. Raises ``ExecutorError`` with the cause chained, here or from
        ``PendingResult.result``; every callback of ``on_failure`` has run by then.
        """

    def compile_grammar(self, grammar: str) -> None:
        """Check ``grammar``, and compile it so that no step waits for it. From any thread; takes bounded time.

        Compiled grammars are cached, the least recently used evicted first. A plan may bring others, which its step
        compiles. Raises ``InvalidRequestError`` or ``ExecutorError``.
        """
        raise InvalidRequestError("grammar", f"cannot be used here: {self.grammar_support}")

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        """Load the adapter at ``path``, whose ``digest`` is known, beside the steps; from any thread.

        From then on plans may name the id, which no other adapter has or had. Raises ``AdapterError`` and
        ``ExecutorError``.
        """
        raise AdapterError("this engine has no adapters: start it with --enable-lora")

    def unload_adapter(self, adapter_id: int) -> None:  # noqa: B027  # there is none
        """Forget an adapter, which no plan to come names, beside the steps; from any thread.

        Raises ``ExecutorError``.
        """

    def is_special_token(self, token_id: int) -> bool:
        """Whether grammars must name a token by id, as no text contains it; needs ``grammar_support`` None."""
        raise InvalidRequestError("grammar", f"cannot be used here: {self.grammar_support}")

    def check_picture(self, picture: Picture) -> None:
        """Raise ``InvalidRequestError`` unless the model can encode ``picture``: then no step fails for it.

        Looks at shapes alone, so it takes microseconds. From any thread.
        """
        raise InvalidRequestError("media", "this model takes no pictures")

    @abstractmethod
    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Register a callback, called once, from any thread, when the executor fails, even while idle."""

    @abstractmethod
    def close(self) -> None:
        """Wait for submitted steps, then free weights and cache. Idempotent."""
