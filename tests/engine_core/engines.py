"""Started engines for tests, and requests run through them whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine_core.engine import EngineCore
from engine_core.executor.workers import Workers
from engine_core.llm import configure
from engine_core.progress import Stage, StartupProgress
from engine_core.request import Request, SamplingParams
from engine_core.startup import StartedEngine, choose_workers, start_engine, start_executor
from engine_core.step import SequenceOutput

from .drafters import DraftingExecutor, EagerExecutor, ScriptedDrafter

BLOCK_BYTES = 2 * 3 * 2 * 16 * 16 * 4
"""Of the tiny models' cache in float32: keys and values, 3 layers, 2 heads, 16 tokens, head size 16."""


@contextmanager
def started(
    model: Path, drafter: ScriptedDrafter | None = None, said: StageDetails | None = None, **options: object
) -> Iterator[StartedEngine]:
    """An engine that is closed at the end; its cache is of 8 MiB unless ``options`` say otherwise.

    With a ``drafter`` its executor is a ``DraftingExecutor``. ``said`` remembers what the start said.
    """
    options = {"dtype": "float32", "kv_cache_memory_bytes": 8 << 20, **options}
    config = configure(model=str(model), **options)
    engine = start_engine(config, StartupProgress(*filter(None, [said])))
    if drafter is not None:
        executor = DraftingExecutor(engine.executor, drafter)
        engine = replace(engine, core=EngineCore(config, executor), executor=executor)
    try:
        yield engine
    finally:
        engine.close()


@dataclass(frozen=True)
class Speculating:
    """An engine that drafts wherever it can, and its executor, which counts."""

    engine: StartedEngine
    executor: EagerExecutor


@contextmanager
def speculating(
    model: Path, speculation: Mapping[str, object], workers: type[Workers] | None = None, **options: object
) -> Iterator[Speculating]:
    """``speculation``: fields of ``SpeculativeConfig``; ``workers``: others than the options select."""
    options = {"dtype": "float32", "kv_cache_memory_bytes": 8 << 20, **options}
    config = configure(model=str(model), speculative_config=json.dumps(speculation), **options)
    chosen = choose_workers(config) if workers is None else workers(config)
    started = start_executor(chosen, StartupProgress())
    executor = EagerExecutor(started)
    try:
        yield Speculating(StartedEngine(EngineCore(config, executor), executor), executor)
    finally:
        started.close()


class StageDetails:
    """Remembers the stages of a start, in order, and what each said."""

    def __init__(self) -> None:
        self.details: dict[str, str] = {}

    def stage_started(self, stage: Stage) -> None:
        self.details[stage.name] = ""

    def stage_advanced(self, stage: Stage, done: int, total: int) -> None: ...

    def stage_finished(self, stage: Stage) -> None:
        self.details[stage.name] = stage.detail


class Outcome:
    """Everything that was said about one choice."""

    def __init__(self) -> None:
        self.outputs: list[SequenceOutput] = []

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def logprobs(self) -> list[object]:
        return [entry for output in self.outputs for entry in output.logprobs or ()]

    @property
    def cached_tokens(self) -> int | None:
        return next((o.cached_tokens for o in self.outputs if o.cached_tokens is not None), None)


def run(
    engine: StartedEngine,
    prompts: Mapping[str, list[int]],
    params: Mapping[str, SamplingParams],
    resume: Mapping[str, Mapping[int, tuple[int, ...]]] | None = None,
) -> dict[tuple[str, int], Outcome]:
    """Run all requests together to their ends; by (name, choice)."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    for name, prompt in prompts.items():
        engine.core.add(Request(name, tuple(prompt), params[name], resume=(resume or {}).get(name, {})))
    while engine.core.has_work():
        for output in engine.core.step():
            outcomes.setdefault((output.request_id, output.choice), Outcome()).outputs.append(output)
    return outcomes
