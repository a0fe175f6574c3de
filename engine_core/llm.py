"""Offline use: a model in this process, without any service.

    with LLM("checkpoints/tiny", dtype="float32") as llm:
        [result] = llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=8))
        print(result.choices[0].token_ids)

Prompts and results are token ids: there is no tokenizer in the engine. The ring's services, and any tokenizer a
caller has, turn them into text.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any, Self

from engine_core.call_thread import Call, CallThread
from engine_core.config import EngineConfig, ModelSpec, options_of
from engine_core.errors import ConfigError, ExecutorError, InvalidRequestError, QueueFullError
from engine_core.logprobs import Logprobs
from engine_core.progress import StartupProgress
from engine_core.request import Finish, Request, SamplingParams
from engine_core.scheduling import SchedulerStats
from engine_core.startup import start_engine
from engine_core.step import SequenceOutput
from engine_core.validation import validate_request


@dataclass(slots=True)
class Completion:
    """One choice of one prompt."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: Logprobs | None = None
    """One per token, when asked for."""
    finish: Finish | None = None
    """Why it ended; set on every completion that ``generate`` returns."""


@dataclass(slots=True)
class Result:
    """What became of one prompt."""

    prompt_token_ids: list[int]
    choices: list[Completion]
    """``params.n`` of them, by choice."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    prompt_logprobs: Logprobs | None = None
    """For prompt tokens 1…, when asked for."""

    def take(self, output: SequenceOutput) -> None:
        """Add the news of one choice."""
        choice = self.choices[output.choice]
        choice.token_ids += output.token_ids
        choice.logprobs = _joined(choice.logprobs, output.logprobs)
        choice.finish = output.finish or choice.finish
        if output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
        self.prompt_logprobs = _joined(self.prompt_logprobs, output.prompt_logprobs)


class LLM:
    """A started engine. Calls of several threads are computed one after the other."""

    def __init__(self, model: str, *, progress: StartupProgress | None = None, **options: Any) -> None:
        """Load ``model`` (a directory or a hub id).

        ``options`` are those of ``engine_core.config`` by name, from any section: ``dtype="float32"``,
        ``max_num_seqs=8``. Raises ``ConfigError`` for an unknown or unusable one, and what ``start_engine`` raises.
        """
        self._engine = start_engine(configure(model=model, **options), progress or StartupProgress())
        self._thread = CallThread("offline")
        self._request_ids = count()

    @property
    def model(self) -> ModelSpec:
        """What the checkpoint turned out to be."""
        return self._engine.core.model

    @property
    def model_digest(self) -> str:
        """Equal for the same model: configuration, length, quantization and weights."""
        return self._engine.executor.model_digest

    @property
    def numerics(self) -> str:
        """Equal digests compute equal tokens for equal prompts and parameters."""
        return self._engine.executor.numerics

    def stats(self) -> SchedulerStats:
        """Counters since the start."""
        return self._engine.core.stats()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Result]:
        """Complete every prompt (token ids), batching them; results are in the order of the prompts.

        ``params`` are for all, or one for each; None takes the checkpoint's own defaults (generation_config.json).
        A prompt's result depends on its ids and parameters alone, so equal ones with equal seeds give equal tokens.
        Raises ``InvalidRequestError`` if any cannot be taken; then none is computed. Interrupted by Ctrl-C or another
        signal, it gives its requests up, within a step, before it raises. An engine on which ``ExecutorError`` was
        raised is of no more use.
        """
        requests = self._requests(prompts, params)
        for request in requests:
            validate_request(request, self.model)
        return self._thread.call(lambda call: self._complete(requests, call))

    def _complete(self, requests: list[Request], call: Call) -> list[Result]:
        """What becomes of ``requests``. However it ends, the engine is left without them."""
        core = self._engine.core
        results = {r.request_id: _empty_result(r) for r in requests}
        waiting = deque(requests)
        try:
            while (waiting or core.has_work()) and not call.interrupted:
                self._add_as_many_as_fit(waiting)
                for output in core.step():
                    results[output.request_id].take(output)
        finally:
            for request_id in results:
                core.cancel(request_id, cause=None)
            with suppress(ExecutorError):  # it has been raised already
                while core.has_work():
                    core.step()
        return list(results.values())

    def _requests(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        if params is None:
            params = default_params(self.model)
        if isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(params)} params for {len(prompts)} prompts: give one for all, or one for each")
        requests = []
        for prompt, chosen in zip(prompts, params, strict=True):
            requests.append(Request(f"offline-{next(self._request_ids)}", _token_ids(prompt), chosen))
        return requests

    def _add_as_many_as_fit(self, requests: deque[Request]) -> None:
        while requests:
            try:
                self._engine.core.add(requests[0])
            except QueueFullError:
                return
            requests.popleft()

    def close(self) -> None:
        """Free weights and cache. Idempotent."""
        self._thread.close()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _token_ids(prompt: object) -> tuple[int, ...]:
    """Of one prompt. Raises ``InvalidRequestError`` for text, and for a prompt that is not in a list of prompts."""
    if isinstance(prompt, str) or not isinstance(prompt, Iterable):
        expected = "expected a list of prompts, each of token ids: a tokenizer makes them of text"
        raise InvalidRequestError("prompts", f"{prompt!r} is not a list of token ids: {expected}")
    return tuple(prompt)


def _empty_result(request: Request) -> Result:
    params = request.params
    return Result(list(request.prompt_token_ids), [Completion() for _ in range(params.n)])


def _joined(known: Logprobs | None, more: Logprobs | None) -> Logprobs | None:
    """``known`` with those that follow."""
    if known is None or more is None:
        return more if known is None else known
    known.extend(more)
    return known


def default_params(model: ModelSpec) -> SamplingParams:
    """What the checkpoint's own generation_config.json recommends, and the engine's defaults for the rest."""
    recommended: dict[str, Any] = dict(model.default_sampling)
    if "top_k" in recommended:
        recommended["top_k"] = int(recommended["top_k"]) or None  # 0 means all tokens there
    return SamplingParams(**recommended)


def configure(**options: Any) -> EngineConfig:
    """An ``EngineConfig`` from options by name, whichever section they are of.

    Raises ``ConfigError`` for an unknown option, listing what it may have been meant to be, and for unusable values.
    """
    sections: dict[str, type[Any]] = {section.name: section.default_factory for section in fields(EngineConfig)}  # type: ignore[misc]
    known = {option: name for name, section in sections.items() for option in options_of(section)}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for option, value in options.items():
        if option not in known:
            close = difflib.get_close_matches(option, known, cutoff=0.5)
            raise ConfigError(option, value, f"a known option; did you mean {' or '.join(close) or 'something else'}?")
        chosen[known[option]][option] = value
    return EngineConfig(**{name: section(**chosen[name]) for name, section in sections.items()})
