"""The executor of a started engine: its workers, wherever they run, compute the plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine_core.config import ModelSpec, RequestMemory
from engine_core.executor.base import Executor, PendingResult
from engine_core.executor.workers import Workers
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.lora.support import LoRASupport
from engine_core.media import Picture
from engine_core.speculation import ASSUMED_STEP_TIMES, StepTimes
from engine_core.step import StepPlan
from engine_core.structured_output.compiler import GrammarCompiler


@dataclass(frozen=True, slots=True)
class StartedModel:
    """What is known about workers once they have started; fields as in ``Executor``."""

    model: ModelSpec
    kv_cache_config: KVCacheConfig
    unwritten_cache_bytes: int
    step_bytes: int
    request_memory: RequestMemory
    model_digest: str
    numerics: str
    largest_step_seconds: float
    max_concurrent_steps: int
    grammars: GrammarCompiler | str
    """The compiler of this process, or why grammars cannot be used."""
    check_picture: Callable[[Picture], None] | None = None
    """None: the model takes no pictures."""
    picture_facts: Mapping[str, Any] | None = None
    step_times: StepTimes = ASSUMED_STEP_TIMES
    lora: LoRASupport | None = None


class CollectiveExecutor(Executor):
    """Owns its workers, which have started."""

    def __init__(self, workers: Workers, started: StartedModel) -> None:
        self.workers = workers
        self.model = started.model
        self.kv_cache_config = started.kv_cache_config
        self.unwritten_cache_bytes = started.unwritten_cache_bytes
        self.step_bytes = started.step_bytes
        self.request_memory = started.request_memory
        self.model_digest = started.model_digest
        self.numerics = started.numerics
        self.largest_step_seconds = started.largest_step_seconds
        self.max_concurrent_steps = started.max_concurrent_steps
        self.picture_facts = started.picture_facts
        self.step_times = started.step_times
        self.lora = started.lora
        self.ranks = workers.places
        self._check_picture = started.check_picture
        self._grammars = None if isinstance(started.grammars, str) else started.grammars
        self.grammar_support = started.grammars if isinstance(started.grammars, str) else None

    def submit(self, plan: StepPlan) -> PendingResult:
        return self.workers.submit(plan)

    def collective_rpc(self, method: str, *arguments: Any, timeout: float | None = None) -> list[Any]:
        """As ``Workers.collective_rpc``, between steps."""
        return self.workers.collective_rpc(method, *arguments, timeout=timeout)

    def compile_grammar(self, grammar: str) -> None:
        self.workers.require_running()
        if self._grammars is None:
            super().compile_grammar(grammar)
            return
        if not self._grammars.has(grammar):
            self.workers.expect_grammar(grammar)
        self._grammars.compile(grammar)

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        if self.lora is None:
            super().load_adapter(adapter_id, path, digest)
        self.workers.load_adapter(adapter_id, path, digest)

    def unload_adapter(self, adapter_id: int) -> None:
        self.workers.unload_adapter(adapter_id)

    def is_special_token(self, token_id: int) -> bool:
        if self._grammars is None:
            return super().is_special_token(token_id)
        return self._grammars.is_special_token(token_id)

    def check_picture(self, picture: Picture) -> None:
        if self._check_picture is None:
            super().check_picture(picture)
        else:
            self._check_picture(picture)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        self.workers.failure.on_failure(callback)

    def close(self) -> None:
        self.workers.close()
