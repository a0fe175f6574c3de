"""Offline use: a model in this process, without services.

    with LLM("checkpoints/tiny", dtype="float32") as llm:
        [result] = llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=8))
        print(result.outputs[0].text)

The engine knows only token ids. ``offline.model_text`` converts between text and ids; it is loaded with the first text
prompt, chat or stop string.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import count
from os import PathLike
from typing import Any, Self, cast

from tqdm import tqdm

from engine_core.config import EngineConfig, ModelSpec
from engine_core.engine import EngineCore
from engine_core.errors import ConfigError, ExecutorError, InvalidRequestError, QueueFullError
from engine_core.logprobs import Logprobs
from engine_core.model_loader.location import EXPECTED, bundled_model
from engine_core.offline.beam_search import (
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
    output_of,
)
from engine_core.offline.best_of import best_choices
from engine_core.offline.call_thread import Call, CallThread
from engine_core.offline.conversations import as_json, read_conversations
from engine_core.offline.forms import form_of
from engine_core.offline.lora import Adapters, Live, LoRARequest, OpenAdapter, OpenAdapters
from engine_core.offline.options import configure
from engine_core.offline.outputs import Arrival, CompletionOutput, OutputLogprobs, RequestMetrics, RequestOutput
from engine_core.offline.pooling import LivePooling, Pooling, task_of
from engine_core.offline.pooling_outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from engine_core.offline.pooling_params import PoolingParams
from engine_core.offline.prompts import Prompt, PromptInput, read_prompts
from engine_core.offline.sampling_params import SamplingParams, read_params
from engine_core.offline.text import ChoiceText, CustomText, Text, Tokenizer
from engine_core.offline.worker_calls import worker_arguments
from engine_core.platforms.selector import is_for_cpu
from engine_core.pooling.params import PoolingTask
from engine_core.progress import StartupProgress, WarningsOnly
from engine_core.request import Finish, FinishReason, Request
from engine_core.request import SamplingParams as EngineSamplingParams
from engine_core.scheduling import SchedulerStats
from engine_core.startup import StartedEngine, start_engine
from engine_core.step import SequenceOutput
from engine_core.validation import no_tokens

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationRequestOutput",
    "Completion",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "LoRARequest",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestMetrics",
    "RequestOutput",
    "Result",
    "SamplingParams",
    "ScoringRequestOutput",
    "Tokenizer",
    "configure",
]

_PARAMS = frozenset(each.name for each in fields(EngineSamplingParams))


Completion = CompletionOutput
"""Its older name."""
Result = RequestOutput
"""Its older name."""


@dataclass(slots=True)
class _Live:
    """A request in progress, and its result so far."""

    request: Request
    prompt: Prompt
    result: RequestOutput
    adapter: OpenAdapter | None = None
    texts: list[ChoiceText] = field(default_factory=list)
    """By choice; empty if no text is needed."""
    best: SamplingParams | None = None
    """Those with ``best_of``: fewer choices are returned than are generated."""
    searched: bool = False
    """Whether each step's text is searched for stop strings; otherwise text is made at the end."""
    queued_ts: float = 0.0
    """This and the following as in ``RequestMetrics``."""
    scheduled_ts: float = 0.0
    first_token_ts: float | None = None
    last_token_ts: float | None = None
    finished_ts: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self.result.finished

    def take(self, output: SequenceOutput, core: EngineCore, now: float) -> int:
        """Add a choice's output, and end the choice at a complete stop string; returns the number of added ids."""
        choice = self.result.outputs[output.choice]
        choice.beam_score = output.beam_score
        before = len(choice.token_ids)
        choice.token_ids += output.token_ids
        choice.logprobs = _joined(choice.logprobs, output.logprobs, choice.token_ids)
        if output.cached_tokens is not None:
            self.result.num_cached_tokens = output.cached_tokens
        if output.queue_seconds is not None:
            self.scheduled_ts = self.queued_ts + output.queue_seconds
        if output.token_ids:
            self.first_token_ts = now if self.first_token_ts is None else self.first_token_ts
            self.last_token_ts = now
        if output.prompt_logprobs is not None:
            scored = self.request.prompt_token_ids[1:]
            self.result.prompt_logprobs = _joined(self.result.prompt_logprobs, output.prompt_logprobs, scored)
        stopped = self.texts[output.choice].add(output.token_ids, output.finish) if self.searched else None
        if stopped is not None:
            core.cancel(output.request_id, output.choice, finish_reason=None)
            choice.finish, choice.stop_reason = Finish(FinishReason.STOP), stopped.stop
            del choice.token_ids[stopped.end :]
            choice.logprobs = choice.logprobs and choice.logprobs[: stopped.end]
        elif output.finish is not None:
            token_id = output.finish.stop_token_id
            choice.finish = output.finish
            choice.stop_reason = token_id if token_id in self.request.params.stop_token_ids else None
        if self.finished:
            self.finished_ts = now
        return len(choice.token_ids) - before

    def finish(self, arrival: Arrival, text_of: Callable[[int], str] | None) -> RequestOutput:
        """The result, with its text and ``text_of`` each token, if it has any."""
        result = self.result
        for choice, text in zip(result.outputs, self.texts, strict=bool(self.texts)):
            if not self.searched:
                text.add(choice.token_ids, choice.finish)
            choice.text = text.text
        if self.best is not None:
            result.outputs = best_choices(result.outputs, self.best)
        result.prompt = self.prompt.text
        if text_of is not None:
            for choice in result.outputs:
                choice.logprobs = choice.logprobs and choice.logprobs.with_texts(choice.token_ids, text_of)
            scored = result.prompt_logprobs
            result.prompt_logprobs = scored and scored.with_texts(result.prompt_token_ids[1:], text_of)
        result.metrics = RequestMetrics(
            arrival.time,
            arrival.ts,
            self.queued_ts,
            self.scheduled_ts,
            self.first_token_ts,
            self.last_token_ts,
            self.finished_ts,
        )
        return result


class LLM:
    """A started engine, which ends with this object. Thread-safe: calls are computed one at a time."""

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        tokenizer: str | PathLike[str] | Tokenizer | None = None,
        progress: StartupProgress | None = None,
        **options: Any,
    ) -> None:
        """Load ``model`` (a directory, a GGUF file or a hub id); by default the small one that Ringline brings along.

        ``tokenizer`` replaces the model's own: a directory, GGUF file or hub id, or an object that encodes and decodes.
        ``options`` are those of ``engine_core.config`` by name, from any section: ``dtype="float32"``,
        ``max_num_seqs=8``, ``kv_cache_memory_bytes="2GiB"``. Without ``progress``, start-up warnings are issued as
        ``RuntimeWarning``. Raises ``ConfigError`` for an unknown or unusable option, and the errors of
        ``start_engine``.
        """
        if model is None and (model := bundled_model()) is None:
            raise ConfigError("model", None, f"{EXPECTED}, because this installation has no bundled model")
        self._custom_tokenizer: Tokenizer | None = None
        if tokenizer is None or isinstance(tokenizer, str | PathLike):
            options["tokenizer"] = tokenizer
        elif isinstance(tokenizer, Tokenizer):
            self._custom_tokenizer = tokenizer
        else:
            raise ConfigError("tokenizer", tokenizer, "a directory, a hub id or an object with encode and decode")
        self._config = configure(model=model, **options)
        if (engines := self._config.parallel.data_parallel_size) > 1:
            raise ConfigError("data_parallel_size", engines, "1: an LLM is one engine; `ringline serve` starts several")
        self._engine = _start(self._config, progress or StartupProgress(WarningsOnly()))
        self._adapters = Adapters(self._engine.executor)
        self._open_adapters = OpenAdapters(self._engine.executor.lora)
        self._stats = self._engine.core.stats()
        self._thread = CallThread("offline")
        self._end = weakref.finalize(self, _end, self._thread, self._engine)
        self._end.atexit = False  # ranks end with this process anyway, without waiting for a call in progress
        self._request_ids = count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's, or the one given; loaded on first use. Raises ``CheckpointError`` if there is none."""
        return self._text.tokenizer

    def get_tokenizer(self) -> Any:
        """``tokenizer``; the model's own also has ``apply_chat_template``."""
        return self.tokenizer

    @cached_property
    def _text(self) -> Text:
        if self._custom_tokenizer is not None:
            return CustomText(self._custom_tokenizer)
        from engine_core.offline.model_text import ModelText

        return ModelText(self._config.model, self._engine.executor.picture_facts)

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
        """Statistics after the last step; callable at any time, from any thread."""
        return self._stats

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, once no call is in progress; False, without changes, if blocks are in use."""

        def reset(_: Call) -> bool:
            core = self._engine.core
            if core.has_work() or core.stats().kv_usage:
                return False
            core.reset_prefix_cache()
            return True

        return self._thread.call(reset)

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call ``method`` of the ``Worker`` of every rank, once no call is in progress; returns the results by rank.

        A public method by name: the engine is unusable after those that end a worker or load it again. ``timeout`` is
        for ranks in processes of their own (default: the option ``worker_start_timeout``); in this process a call takes
        as long as it takes. Raises ``TypeError`` or ``ValueError`` for what no worker can be asked, what the method
        raises, and ``ExecutorError`` if a rank does not answer, after which the engine is unusable.
        """
        arguments = worker_arguments(method, timeout, args, kwargs or {})
        executor = self._engine.executor
        return self._thread.call(lambda _: executor.collective_rpc(method, *arguments, timeout=timeout))

    def get_default_sampling_params(self) -> SamplingParams:
        """The recommendations of the checkpoint's generation_config.json; the engine's defaults for the rest."""
        recommended: dict[str, Any] = dict(self.model.default_sampling)
        if "top_k" in recommended:
            recommended["top_k"] = int(recommended["top_k"]) or None  # in the file, 0 means all tokens
        return SamplingParams(**recommended)

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: EngineSamplingParams | Sequence[EngineSamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, in batches; results are in the order of the prompts.

        A prompt is text, a list of token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``; ``prompts`` is one
        or a list. ``{"prompt": text, "multi_modal_data": {"image": …}}`` has a picture, or several in a list, for each
        of the model's placeholders in the text. ``sampling_params``: one for all, or one per prompt; None: the
        checkpoint's defaults (generation_config.json). ``use_tqdm`` shows progress on stderr if that is a terminal.
        ``lora_request``: the adapter of all prompts, or of each; it needs ``enable_lora``.

        A result depends only on the prompt's ids, parameters and adapter (on a GPU: with ``deterministic``), not on the
        other prompts: equal prompts with equal seeds give equal tokens.
        Raises ``TypeError`` or ``ValueError`` (such as ``InvalidRequestError``), naming the prompt, if any prompt is
        unusable, and ``ClosedError`` after ``close``; then nothing is computed. Interrupted by Ctrl-C or another
        signal, it drops its requests, within a step, before it raises. After ``ExecutorError`` the engine is unusable.
        """
        arrival = Arrival(time.time(), time.monotonic())
        read = [self._text.with_pictures(one) if one.pictures else one for one in read_prompts(prompts)]
        return self._generate(read, sampling_params, arrival, lora_request, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[BeamSearchOutput]:
        """The ``beam_width`` best continuations of each prompt, found as transformers' ``generate`` finds them.

        Prompts, errors and order as in ``generate``, to which ``SamplingParams(beam_search=…)`` gives the same search.
        """
        read = read_prompts(prompts)
        results = self.generate(prompts, params.for_generate(), use_tqdm=use_tqdm, lora_request=lora_request)
        return [
            output_of(result, params, None if prompt.text is None else self.tokenizer)
            for prompt, result in zip(read, results, strict=True)
        ]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: EngineSamplingParams | Sequence[EngineSamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_name: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one or a list of conversations, as ``generate`` completes prompts.

        Messages are in OpenAI's format: ``{"role": "user", "content": "Hello"}``, where ``content`` may be a list of
        texts and pictures: ``{"type": "image_url", "image_url": {"url": "data:…"}}``, or ``{"type": "image", "image":
        …}`` with bytes, a path or a picture of Pillow. The model's chat template makes the prompt, as in the ring:
        ``template_name`` chooses one of several; ``tools`` and ``chat_template_kwargs`` are passed to it.
        ``add_generation_prompt`` opens the answer (the default, unless ``continue_final_message`` continues the last
        message).
        """
        arrival = Arrival(time.time(), time.monotonic())
        if self.model.pooling is not None:
            raise InvalidRequestError("messages", no_tokens(self.model.name, self.model.pooling))
        if not isinstance(template_name, str | None):
            raise TypeError(f"template_name is of type {type(template_name).__name__}; expected text")
        template = {
            "tools": None if tools is None else as_json(tools, list, "tools"),
            "template_name": template_name,
            "add_generation_prompt": not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
            "continue_final_message": continue_final_message,
            "template_args": as_json(chat_template_kwargs or {}, dict, "chat_template_kwargs"),
        }
        prompts = [self._text.render(conversation, **template) for conversation in read_conversations(messages)]
        return self._generate(prompts, sampling_params, arrival, lora_request, use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        prompt_name: str | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Vectors of prompts: ``outputs.embedding`` of each result, in the order of the prompts.

        Prompts and errors as in ``generate``. ``prompt_name`` names one of the model's prompts (``model.pooling``),
        which is put before each text; None: its default one, "": none. A result depends on the prompt alone, not on the
        others. Raises ``InvalidRequestError`` for a model that makes no vectors.
        """
        results = self._pooling(use_tqdm).encode(prompts, pooling_params, PoolingTask.EMBED, prompt_name, lora_request)
        return [cast("EmbeddingRequestOutput", each) for each in results]

    def classify(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Labels of prompts: ``outputs.probs`` of each result, as ``model.pooling.labels`` names them; as ``embed``."""
        pooling = self._pooling(use_tqdm)
        results = pooling.encode(prompts, pooling_params, PoolingTask.CLASSIFY, None, lora_request)
        return [cast("ClassificationRequestOutput", each) for each in results]

    def encode(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        pooling_task: str | None = None,
        prompt_name: str | None = None,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What ``pooling_task`` makes of prompts, as tensors: ``outputs.data`` of each result; as ``embed``.

        Tasks are embed, classify and, with a row for each token, token_embed and token_classify. None: that of
        ``pooling_params``, else the first one of ``model.pooling.tasks``.
        """
        named = pooling_task or getattr(pooling_params, "task", None)
        pooling = self._pooling(use_tqdm)
        task = task_of(named, "pooling_task") if named else pooling.facts.tasks[0]
        return pooling.encode(prompts, pooling_params, task, prompt_name, lora_request)

    def reward(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Rewards of prompts, ``outputs.data``: of each token, if the model rewards these, else of the whole."""
        pooling = self._pooling(use_tqdm)
        of_tokens = PoolingTask.TOKEN_CLASSIFY in pooling.facts.tasks
        task = PoolingTask.TOKEN_CLASSIFY if of_tokens else PoolingTask.CLASSIFY
        return pooling.encode(prompts, pooling_params, task, None, lora_request)

    def score(
        self,
        data_1: PromptInput | Sequence[PromptInput],
        data_2: PromptInput | Sequence[PromptInput],
        pooling_params: PoolingParams | None = None,
        *,
        instruction: str = "",
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well each of ``data_2`` matches ``data_1``, or its own one of them: ``outputs.score`` of each result.

        A model that reads two texts together scores them; of others, vectors are compared by their cosine.
        ``instruction`` says what a match means, for models whose chat template shows it. Errors as in ``embed``.
        """
        return self._pooling(use_tqdm).score(data_1, data_2, pooling_params, instruction, lora_request)

    def _pooling(self, use_tqdm: bool) -> Pooling:
        """Raises ``InvalidRequestError`` if the model generates tokens."""
        core = self._engine.core
        run = partial(self._run, use_tqdm=use_tqdm)
        opened = self._open_adapters.of
        return Pooling(core.model, lambda: self._text, core.check, run, self._request_ids, opened)

    def _generate(
        self, prompts: list[Prompt], params: object, arrival: Arrival, adapters: object, *, use_tqdm: bool
    ) -> list[RequestOutput]:
        opened = self._open_adapters.of(adapters, len(prompts))
        live = self._requests(prompts, *self._params(params, len(prompts)))
        for each, adapter in zip(live, opened, strict=True):
            each.adapter = adapter
        self._run(live, use_tqdm=use_tqdm)
        return [each.finish(arrival, self._text.token_text if each.texts else None) for each in live]

    def _run(self, live: Sequence[_Live | LivePooling], *, use_tqdm: bool) -> None:
        """Compute requests to their ends."""
        hidden = None if use_tqdm else True  # None: unless stderr is a terminal
        with tqdm(total=len(live), desc="Processed prompts", dynamic_ncols=True, disable=hidden) as bar:
            self._thread.call(lambda call: self._complete(live, bar, call))

    def _complete(self, requests: Sequence[_Live | LivePooling], bar: tqdm, call: Call) -> None:
        """Compute ``requests``; always removes them from the engine.

        ``bar`` shows the finished prompts, and the tokens per second so far.
        """
        core, tokens, begun = self._engine.core, 0, time.monotonic()
        live = {each.request.request_id: each for each in requests}
        waiting = deque[Live]()
        try:
            for each in requests:
                waiting += self._adapters.add(each)
            while (waiting or core.has_work()) and not call.interrupted:
                with suppress(QueueFullError):
                    while waiting:
                        waiting[0].queued_ts = time.monotonic()
                        core.add(waiting[0].request)
                        waiting.popleft()
                outputs, now = core.step(), time.monotonic()
                self._stats = core.stats()
                for output in outputs:
                    one = live[output.request_id]
                    tokens += one.take(output, core, now)
                    if one.finished:
                        waiting += self._adapters.end(output.request_id)
                        speed = tokens / max(1e-9, time.monotonic() - begun)
                        bar.set_postfix_str(f"{speed:.0f} tokens/s", refresh=False)
                        bar.update()
        finally:
            for request_id in live:
                core.cancel(request_id, finish_reason=None)
            with suppress(ExecutorError):  # already raised
                while core.has_work():
                    core.step()
            self._adapters.forget(live)
            self._stats = core.stats()

    def _params(self, params: object, num_prompts: int) -> tuple[Sequence[EngineSamplingParams], Sequence[str]]:
        """The parameters of each prompt, and their places in the caller's arguments."""
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, EngineSamplingParams):
            return [params] * num_prompts, ["sampling_params"] * num_prompts
        if not isinstance(params, list | tuple):
            problem = f"sampling_params is of type {type(params).__name__}"
            raise TypeError(f"{problem}; expected SamplingParams, or a list of them")
        places = [f"sampling_params[{index}]" for index in range(len(params))]
        for each, place in zip(params, places, strict=True):
            if not isinstance(each, EngineSamplingParams):
                raise TypeError(f"{place} is of type {type(each).__name__}; expected SamplingParams")
        if len(params) != num_prompts:
            numbers = f"the number of sampling_params is {len(params)}, that of prompts is {num_prompts}"
            raise ValueError(f"{numbers}; expected one for all, or one for each")
        return params, places

    def _requests(
        self, prompts: list[Prompt], params: Sequence[EngineSamplingParams], places: Sequence[str]
    ) -> list[_Live]:
        """Check all requests before computing any. ``places``: where ``params`` are in the caller's arguments."""
        checked: dict[int, tuple[SamplingParams, EngineSamplingParams]] = {}  # by id: shared parameters stay shared
        for each, place in zip(params, places, strict=True):
            if id(each) not in checked:
                own = read_params(each, place)
                if own.stop_strings or self._custom_tokenizer is not None:
                    self._text.check(own, place)
                checked[id(each)] = own, own.for_engine(self._grammar(each, own, place))
        return [
            self._request(prompt, *checked[id(each)], place)
            for prompt, each, place in zip(prompts, params, places, strict=True)
        ]

    def _grammar(self, given: EngineSamplingParams, params: SamplingParams, place: str) -> str | None:
        """The grammar, compiled, for the form that ``params`` request; None if they request none."""
        if isinstance(given, SamplingParams):
            form = form_of(params, place)
            grammar = None if form is None else self._text.grammar(*form, params, place)
        else:
            grammar, form = params.grammar, ("grammar", None)  # as the engine reads it
        if grammar is None or form is None:
            return None
        try:
            self._thread.call(lambda _: self._engine.executor.compile_grammar(grammar))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{place}: {form[0]}", error.problem) from None
        return grammar

    def _request(self, prompt: Prompt, params: SamplingParams, for_engine: EngineSamplingParams, place: str) -> _Live:
        token_ids = prompt.token_ids
        if token_ids is None:
            token_ids = tuple(map(int, self.tokenizer.encode(prompt.text or "")))
        if params.seed is None:  # another for each prompt that shares them
            for_engine = replace(for_engine, seed=secrets.randbits(64))
        request = Request(f"offline-{next(self._request_ids)}", token_ids, for_engine, media=prompt.media)
        try:
            self._engine.core.check(request)
            for item in prompt.media:
                self._engine.executor.check_picture(item.picture)
        except InvalidRequestError as error:
            where = f"{place}: {error.field}" if error.field.partition(".")[0] in _PARAMS else prompt.place
            raise InvalidRequestError(where, error.problem) from None
        choices = [CompletionOutput(index=index) for index in range(for_engine.n)]
        result = RequestOutput(list(token_ids), choices, request_id=request.request_id)
        live = _Live(request, prompt, result, searched=bool(params.stop_strings))
        live.best = None if params.best_of is None else params
        if prompt.text is not None or live.searched:
            live.texts = [self._text.choice(token_ids, params) for _ in range(for_engine.n)]
        return live

    def close(self) -> None:
        """Free weights and cache. Idempotent."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _start(config: EngineConfig, progress: StartupProgress) -> StartedEngine:
    """Start the engine; on a GPU, in a thread that ends before calls are computed: cuBLAS has a handle and workspace
    per living thread, so the calls' thread would otherwise add its own to the measured memory.
    """
    if is_for_cpu(config.device) or config.parallel.backend != "uni":
        return start_engine(config, progress)

    def start(call: Call) -> StartedEngine:
        engine = start_engine(config, progress)
        if call.interrupted:
            engine.close()
        return engine

    thread = CallThread("start")
    try:
        return thread.call(start)
    finally:
        thread.close()


def _end(thread: CallThread, engine: StartedEngine) -> None:
    thread.close()
    engine.close()


def _joined(known: OutputLogprobs | None, more: Logprobs | None, token_ids: Sequence[int]) -> OutputLogprobs | None:
    """Concatenate; either may be None. ``token_ids`` are those of both."""
    if known is None or more is None:
        return known if more is None else OutputLogprobs(more, token_ids)
    known.extend(more)
    return known
