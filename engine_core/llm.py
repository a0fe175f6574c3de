"""Offline use: a model in this process, without any service.

    with LLM("checkpoints/tiny", dtype="float32") as llm:
        [result] = llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=8))
        print(result.choices[0].text)

The engine below it knows only token ids. The model's tokenizer is loaded with the first text prompt; it turns prompts
into ids and output into text. Prompts of ids need none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import count
from os import PathLike, fspath
from typing import Any, Self

from tqdm import tqdm

from engine_core.call_thread import Call, CallThread
from engine_core.config import EngineConfig, ModelSpec, options_of
from engine_core.errors import ConfigError, ExecutorError, InvalidRequestError, QueueFullError
from engine_core.logprobs import Logprobs
from engine_core.model_loader.tokenizer import Tokenizer, load_tokenizer, text_after
from engine_core.numpy_to_python import plain, plain_params
from engine_core.progress import StartupProgress, WarningsOnly
from engine_core.prompts import Prompt, PromptInput, read_prompts
from engine_core.request import Finish, Request, SamplingParams
from engine_core.scheduling import SchedulerStats
from engine_core.startup import start_engine
from engine_core.step import SequenceOutput
from engine_core.validation import validate_request
from engine_core.vllm_options import unknown_option

_PARAMS = frozenset(field.name for field in fields(SamplingParams))


@dataclass(slots=True)
class Completion:
    """One choice of one prompt."""

    token_ids: list[int] = field(default_factory=list)
    text: str | None = None
    """The text of the ids, without special tokens; None where the prompt was ids."""
    logprobs: Logprobs | None = None
    """One per token, when asked for."""
    finish: Finish | None = None
    """Why it ended; set on every completion that ``generate`` returns."""


@dataclass(slots=True)
class Result:
    """All choices of one prompt."""

    prompt_token_ids: list[int]
    choices: list[Completion]
    """As many as its parameters' ``n``, by choice."""
    prompt: str | None = None
    """The prompt, where it was text."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    prompt_logprobs: Logprobs | None = None
    """For prompt tokens 1…, when asked for."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish is not None for choice in self.choices)

    def take(self, output: SequenceOutput) -> None:
        choice = self.choices[output.choice]
        choice.token_ids += output.token_ids
        choice.logprobs = _joined(choice.logprobs, output.logprobs)
        choice.finish = output.finish or choice.finish
        if output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
        self.prompt_logprobs = _joined(self.prompt_logprobs, output.prompt_logprobs)


class LLM:
    """A started engine. Thread-safe: calls are computed one after the other."""

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        tokenizer: str | PathLike[str] | Tokenizer | None = None,
        progress: StartupProgress | None = None,
        **options: Any,
    ) -> None:
        """Load ``model`` (a directory or a hub id).

        ``tokenizer`` replaces the model's own: a directory, a hub id, or an object that encodes and decodes.
        ``options`` are those of ``engine_core.config`` by name, from any section: ``dtype="float32"``,
        ``max_num_seqs=8``. Without ``progress``, what the start warns of is a ``RuntimeWarning``.
        Raises ``ConfigError`` for an unknown or unusable option, and what ``start_engine`` raises.
        """
        if tokenizer is None or isinstance(tokenizer, str | PathLike):
            options["tokenizer"] = tokenizer
        else:
            self.tokenizer = _checked(tokenizer)
        self._config = configure(model=model, **options)
        self._engine = start_engine(self._config, progress or StartupProgress(WarningsOnly()))
        self._stats = self._engine.core.stats()
        self._thread = CallThread("offline")
        self._request_ids = count()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's, or the one given; loaded on first use. Raises ``CheckpointError`` where there is none."""
        return load_tokenizer(self._config.model)

    @property
    def model(self) -> ModelSpec:
        """Read from the checkpoint."""
        return self._engine.core.model

    @property
    def model_digest(self) -> str:
        """Equal for the same model: configuration, length, quantization and weights."""
        return self._engine.executor.model_digest

    @property
    def numerics(self) -> str:
        """Engines with equal digests compute equal tokens for equal prompts and parameters."""
        return self._engine.executor.numerics

    def stats(self) -> SchedulerStats:
        """As the last step left it; at any time, from any thread."""
        return self._stats

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Result]:
        """Complete every prompt, batching them; results are in the order of the prompts.

        A prompt is text, a list of token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``; ``prompts`` is one
        or a list of them. ``sampling_params``: one for all, or one for each; None takes the checkpoint's own defaults
        (generation_config.json). ``use_tqdm`` shows progress on stderr where that is a terminal.

        Where a row's bits do not depend on its batch (on a GPU: with ``deterministic``), a result depends on the
        prompt's ids and parameters alone, so equal prompts with equal seeds give equal tokens. Raises ``TypeError`` or
        ``ValueError`` (such as ``InvalidRequestError``) naming the prompt if any cannot be taken, and ``ClosedError``
        after ``close``; then none is computed. Interrupted by Ctrl-C or another signal, it drops its requests, within a
        step, before it raises. After ``ExecutorError`` the engine is unusable.
        """
        read = read_prompts(prompts)
        requests = self._requests(read, *self._params(sampling_params, len(read)))
        with closing(_Progress(len(requests), shown=use_tqdm)) as progress:
            results = self._thread.call(lambda call: self._complete(requests, progress, call))
        for prompt, result in zip(read, results, strict=True):
            if prompt.text is not None:
                result.prompt = prompt.text
                for choice in result.choices:
                    choice.text = text_after(self.tokenizer, result.prompt_token_ids, choice.token_ids)
        return results

    def _complete(self, requests: list[Request], progress: _Progress, call: Call) -> list[Result]:
        """Compute ``requests``. However this ends, the engine is left without them."""
        core = self._engine.core
        results = {r.request_id: _empty_result(r) for r in requests}
        waiting = deque(requests)
        try:
            while (waiting or core.has_work()) and not call.interrupted:
                self._add_as_many_as_fit(waiting)
                outputs = core.step()
                self._stats = core.stats()
                for output in outputs:
                    result = results[output.request_id]
                    result.take(output)
                    progress.advance(len(output.token_ids), finished=output.finish is not None and result.finished)
        finally:
            for request_id in results:
                core.cancel(request_id, finish_reason=None)
            with suppress(ExecutorError):  # it has been raised already
                while core.has_work():
                    core.step()
            self._stats = core.stats()
        return list(results.values())

    def _params(self, params: object, num_prompts: int) -> tuple[Sequence[SamplingParams], Sequence[str]]:
        """Return the parameters of each prompt, and their places in the caller's arguments."""
        if params is None:
            params = default_params(self.model)
        if isinstance(params, SamplingParams):
            return [params] * num_prompts, ["sampling_params"] * num_prompts
        if not isinstance(params, list | tuple):
            problem = f"sampling_params is of type {type(params).__name__}"
            raise TypeError(f"{problem}; expected SamplingParams, or a list of them")
        places = [f"sampling_params[{index}]" for index in range(len(params))]
        for each, place in zip(params, places, strict=True):
            if not isinstance(each, SamplingParams):
                raise TypeError(f"{place} is of type {type(each).__name__}; expected SamplingParams")
        if len(params) != num_prompts:
            numbers = f"the number of sampling_params is {len(params)}, that of prompts is {num_prompts}"
            raise ValueError(f"{numbers}; expected one for all, or one for each")
        return params, places

    def _requests(
        self, prompts: list[Prompt], params: Sequence[SamplingParams], places: Sequence[str]
    ) -> list[Request]:
        """Check all requests before any is computed. ``places``: where the caller has each of ``params``."""
        requests = []
        converted = {id(each): each for each in params}
        converted = {key: plain_params(each) for key, each in converted.items()}  # what prompts share stays shared
        for prompt, chosen, place in zip(prompts, params, places, strict=True):
            token_ids = prompt.token_ids
            if token_ids is None:
                token_ids = tuple(map(int, self.tokenizer.encode(prompt.text or "")))
            request = Request(f"offline-{next(self._request_ids)}", token_ids, converted[id(chosen)])
            try:
                validate_request(request, self.model)
            except InvalidRequestError as error:
                where = place if error.field in _PARAMS else prompt.place
                raise InvalidRequestError(f"{where}: {error.field}", error.problem) from None
            requests.append(request)
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


class _Progress:
    """A bar of finished prompts, with the tokens per second so far."""

    def __init__(self, total: int, *, shown: bool) -> None:
        # disable=None: shown only where stderr is a terminal.
        self._bar = tqdm(total=total, desc="Processed prompts", dynamic_ncols=True, disable=None if shown else True)
        self._tokens = 0
        self._begun = time.monotonic()

    def advance(self, tokens: int, *, finished: bool) -> None:
        """Count output tokens, and the prompt that they finish."""
        self._tokens += tokens
        if finished:
            speed = self._tokens / max(1e-9, time.monotonic() - self._begun)
            self._bar.set_postfix_str(f"{speed:.0f} tokens/s", refresh=False)
            self._bar.update()

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


def _checked(tokenizer: object) -> Tokenizer:
    if not isinstance(tokenizer, Tokenizer):
        raise ConfigError("tokenizer", tokenizer, "a directory, a hub id or an object with encode and decode")
    return tokenizer


def _empty_result(request: Request) -> Result:
    params = request.params
    return Result(list(request.prompt_token_ids), [Completion() for _ in range(params.n)])


def _joined(known: Logprobs | None, more: Logprobs | None) -> Logprobs | None:
    """Concatenate; either may be None."""
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
    """An ``EngineConfig`` from options by name, from any section; paths and numpy's numbers are accepted, too.

    Raises ``UnknownOptionError``, which says what there is instead, and ``ConfigError`` for unusable values.
    """
    sections: dict[str, type[Any]] = {section.name: section.default_factory for section in fields(EngineConfig)}  # type: ignore[misc]
    known = {option: name for name, section in sections.items() for option in options_of(section)}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for option, value in options.items():
        if option not in known:
            raise unknown_option(option, value)
        chosen[known[option]][option] = fspath(value) if isinstance(value, PathLike) else plain(value)
    return EngineConfig(**{name: section(**chosen[name]) for name, section in sections.items()})
