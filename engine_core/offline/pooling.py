"""``LLM`` for models that pool: vectors, scores and labels of prompts."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine_core.config import ModelSpec
from engine_core.errors import InvalidRequestError, written
from engine_core.offline.lora import OpenAdapter
from engine_core.offline.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from engine_core.offline.pooling_params import PoolingParams, read_pooling_params
from engine_core.offline.prompts import Prompt, read_prompts
from engine_core.offline.text import Text
from engine_core.pooling import params as core
from engine_core.pooling.facts import PairForm, PoolingFacts
from engine_core.pooling.params import Pooled, PoolingInput, PoolingRequest, PoolingTask
from engine_core.request import Finish
from engine_core.step import SequenceOutput
from text_core.comparison import DOCUMENT_PROMPTS, QUERY_PROMPTS, own_prompt, similarities

_OUTPUTS: dict[PoolingTask, tuple[type[PoolingRequestOutput[PoolingOutput]], type[PoolingOutput]]] = {
    PoolingTask.EMBED: (EmbeddingRequestOutput, EmbeddingOutput),
    PoolingTask.CLASSIFY: (ClassificationRequestOutput, ClassificationOutput),
}
Run = Callable[[Sequence["LivePooling"]], None]
"""Computes requests to their ends."""


@dataclass(slots=True)
class LivePooling:
    """A prompt in progress: a request of one input."""

    request: PoolingRequest
    place: str
    """Of the prompt in the caller's arguments."""
    adapter: OpenAdapter | None = None
    """None: nothing is added to the model."""
    queued_ts: float = 0.0
    """When the engine took it, of ``time.monotonic``."""
    cached_tokens: int = 0
    pooled: Pooled | None = None
    end: Finish | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.request.inputs[0].token_ids

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.end is not None

    def take(self, output: SequenceOutput, core: object, now: float) -> int:
        """Add its output; returns the number of tokens that were pooled."""
        self.cached_tokens = output.cached_tokens or self.cached_tokens
        self.pooled, self.end = output.pooled, output.finish
        return len(self.token_ids) if output.finish is not None else 0

    def result(self) -> Pooled:
        """Raises ``InvalidRequestError`` if there is none, such as one that is not a number."""
        if self.pooled is None:
            assert self.end is not None
            problem = self.end.error or f"ended with {self.end.finish_reason.value}"
            raise InvalidRequestError(self.place, problem)
        return self.pooled


class Pooling:
    """What ``LLM`` asks of a model that pools."""

    def __init__(
        self,
        model: ModelSpec,
        text: Callable[[], Text],
        check: Callable[[PoolingRequest], None],
        run: Run,
        request_ids: Iterator[int],
        open_adapters: Callable[[object, int], Sequence[OpenAdapter | None]],
    ) -> None:
        """``text``: loaded with the first text. ``check``: as ``EngineCore.check``. ``open_adapters``: of all prompts.

        Raises ``InvalidRequestError``.
        """
        if model.pooling is None:
            problem = "generates text; expected a model that pools, or runner='pooling' to make vectors of this one's"
            raise InvalidRequestError(f"model {model.name}", problem)
        self._model = model
        self.facts: PoolingFacts = model.pooling
        self._text = text
        self._check = check
        self._run = run
        self._request_ids = request_ids
        self._open_adapters = open_adapters

    def encode(
        self, prompts: object, params: object, task: PoolingTask, prompt_name: str | None, adapters: object
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Results of prompts, each with the model's prompt of that name (None: its default one) before it."""
        if task not in self.facts.tasks:
            computed = ", ".join(each.value for each in self.facts.tasks)
            raise InvalidRequestError(
                f"model {self._model.name}", f"has no task {task.value}; expected one of {computed}"
            )
        read = read_prompts(prompts)
        given, places = read_pooling_params(params, len(read))
        for each, place in zip(given, places, strict=True):
            _check_task(each, task, place)
        before = self._prompt(prompt_name) if task.embeds else ""
        inputs = self._inputs(read, [before] * len(read), self._cuts(given, places))
        live = [
            self._live(one, each.for_engine(task, self.facts, place), prompt.place, place)
            for one, each, prompt, place in zip(inputs, given, read, places, strict=True)
        ]
        self._compute(live, adapters)
        kind, output = _OUTPUTS.get(task, (PoolingRequestOutput, PoolingOutput))
        return [
            kind(
                output.of(each.result(), per_token=task.per_token),
                list(each.token_ids),
                each.cached_tokens,
                each.request.request_id,
            )
            for each in live
        ]

    def score(
        self, data_1: object, data_2: object, params: object, instruction: str, adapters: object
    ) -> list[ScoringRequestOutput]:
        """How well each of ``data_2`` matches the only one of ``data_1``, or its own."""
        first, second = read_prompts(data_1, "data_1"), read_prompts(data_2, "data_2")
        if len(first) not in (1, len(second)):
            numbers = f"data_1 has {len(first)} texts, data_2 has {len(second)}"
            raise ValueError(f"{numbers}; expected one in data_1, or as many")
        given, places = read_pooling_params(params, 1)
        if self.facts.pair_form is None:
            if PoolingTask.EMBED not in self.facts.tasks:
                problem = (
                    f"scores no pairs; expected one that has one label (it has {len(self.facts.labels)}) or vectors"
                )
                raise InvalidRequestError(f"model {self._model.name}", problem)
            if instruction:
                problem = "has no place in what this model reads; expected none, or a prompt in the texts"
                raise InvalidRequestError("instruction", problem)
            return self._compared(first, second, given[0], places[0], adapters)
        pairs = [(first[index if len(first) > 1 else 0], each) for index, each in enumerate(second)]
        return self._read_together(pairs, given[0], places[0], instruction, adapters)

    def _read_together(
        self,
        pairs: Sequence[tuple[Prompt, Prompt]],
        params: PoolingParams,
        place: str,
        instruction: str,
        adapters: object,
    ) -> list[ScoringRequestOutput]:
        assert self.facts.pair_form is not None
        _check_task(params, PoolingTask.CLASSIFY, place)
        for each in (one for pair in pairs for one in pair):
            if each.text is None:
                raise InvalidRequestError(each.place, "is token ids; expected text, as this model reads two together")
        [cut] = self._cuts([params], [place])
        most = self._model.max_model_len
        if self.facts.pair_form is PairForm.TEMPLATE:
            instruction = instruction or self.facts.prompts.get(self.facts.default_prompt, "")
        inputs = self._text().pooled_pairs(pairs, self.facts.pair_form, instruction, cut, most)
        for_engine = params.for_engine(PoolingTask.CLASSIFY, self.facts, place)
        live = [self._live(one, for_engine, pair[1].place, place) for one, pair in zip(inputs, pairs, strict=True)]
        self._compute(live, adapters)
        scores = (ClassificationOutput.of(each.result(), per_token=False).values[0] for each in live)
        return [
            ScoringRequestOutput(
                ScoringOutput(score), list(each.token_ids), each.cached_tokens, each.request.request_id
            )
            for score, each in zip(scores, live, strict=True)
        ]

    def _compared(
        self, first: list[Prompt], second: list[Prompt], params: PoolingParams, place: str, adapters: object
    ) -> list[ScoringRequestOutput]:
        """By how near vectors are, each of a text with the model's own prompt for its kind."""
        _check_task(params, PoolingTask.EMBED, place)
        facts, prompts = self.facts, [*first, *second]
        query, document = (
            own_prompt(names, facts.prompts, facts.default_prompt) for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS)
        )
        puts = [query] * len(first) + [document] * len(second)
        inputs = self._inputs(prompts, puts, self._cuts([params], [place]) * len(prompts))
        for_engine = params.for_engine(PoolingTask.EMBED, self.facts, place)
        live = [self._live(one, for_engine, prompt.place, place) for one, prompt in zip(inputs, prompts, strict=True)]
        self._compute(live, adapters)
        vectors = [EmbeddingOutput.of(each.result(), per_token=False).values for each in live]
        scores = array("f", similarities(facts.similarity.value, vectors[: len(first)], vectors[len(first) :]))
        queries, documents = live[: len(first)], live[len(first) :]
        results = []
        for index, (score, each) in enumerate(zip(scores, documents, strict=True)):
            with_it = queries[index if len(queries) > 1 else 0]
            ids, cached = [*with_it.token_ids, *each.token_ids], with_it.cached_tokens + each.cached_tokens
            results.append(ScoringRequestOutput(ScoringOutput(score), ids, cached, each.request.request_id))
        return results

    def _prompt(self, name: str | None) -> str:
        """What the model puts before a text, by its name. Raises ``InvalidRequestError``."""
        prompts = self.facts.prompts
        name = self.facts.default_prompt if name is None else name
        if not name:
            return ""
        if name not in prompts:
            known = " or ".join(map(repr, sorted(prompts))) or "None, as this model has no prompts"
            raise InvalidRequestError("prompt_name", f"is {written(name)}; expected {known}")
        return prompts[name]

    def _cuts(self, params: Sequence[PoolingParams], places: Sequence[str]) -> list[int | None]:
        most = self._model.max_model_len
        return [each.cut(most, place) for each, place in zip(params, places, strict=True)]

    def _inputs(
        self, prompts: Sequence[Prompt], before: Sequence[str], cuts: Sequence[int | None]
    ) -> list[PoolingInput]:
        """The ids of prompts. ``before``: what is put before each, if it is a text."""
        for each in prompts:
            if each.pictures:
                raise InvalidRequestError(each.place, "has pictures; expected text or token ids")
        found: dict[int, PoolingInput] = {}
        for cut in set(cuts):
            places = [index for index, each in enumerate(prompts) if cuts[index] == cut and each.text is not None]
            if places:
                texts, puts = [prompts[index] for index in places], [before[index] for index in places]
                encoded = self._text().pooled_texts(texts, puts, cut, self._model.max_model_len)
                found |= dict(zip(places, encoded, strict=True))
        return [
            found[index] if index in found else PoolingInput((each.token_ids or ())[: cuts[index]])
            for index, each in enumerate(prompts)
        ]

    def _compute(self, live: Sequence[LivePooling], adapters: object) -> None:
        for each, adapter in zip(live, self._open_adapters(adapters, len(live)), strict=True):
            each.adapter = adapter
        self._run(live)

    def _live(self, one: PoolingInput, params: core.PoolingParams, place: str, params_place: str) -> LivePooling:
        """Checked. Raises ``InvalidRequestError``."""
        request = PoolingRequest(f"offline-{next(self._request_ids)}", {0: one}, params)
        try:
            self._check(request)
        except InvalidRequestError as error:
            where = place if error.field.startswith("inputs") else f"{params_place}: {error.field}"
            raise InvalidRequestError(where, error.problem) from None
        return LivePooling(request, place)


def task_of(name: object, place: str) -> PoolingTask:
    """A task by its name. Raises ``InvalidRequestError``."""
    if isinstance(name, PoolingTask):
        return name
    try:
        return PoolingTask(name)
    except ValueError:
        known = ", ".join(task.value for task in PoolingTask)
        raise InvalidRequestError(place, f"is {written(name)}; expected one of {known}") from None


def _check_task(params: PoolingParams, task: PoolingTask, place: str) -> None:
    if params.task is not None and task_of(params.task, f"{place}: task") is not task:
        raise InvalidRequestError(
            f"{place}: task", f"is {params.task}; expected None or {task.value}, as the call asks"
        )
