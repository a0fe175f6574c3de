"""Resolves a request that is pooled: its inputs' ids, its defaults, the engine's Submit and the plan of its answer.

Runs in worker threads, some inputs at a time: a request may have a hundred times as much text as a prompt.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import pooling_pb2

from services.common.rpc.shared_messages import adapter_to_proto
from services.processor.admission.pooling_inputs import chats_of, length_of, pairs_of, texts_of
from services.processor.admission.pooling_validation import (
    check_dimensions,
    check_inputs,
    check_instruction,
    check_pooling_request,
    check_queries,
    check_repeated,
    check_result_size,
    check_task,
    prompt_text,
)
from services.processor.admission.request_resolution import cache_salt
from services.processor.admission.validation import refuse
from services.processor.pooling.plan import AnswerForm, AnswerPlan, PoolingMessage
from services.processor.pooling.purpose import wrong_model
from services.processor.request import ResolvedRequest
from services.processor.served_models import ServedModel
from services.ring.adapters import Adapter
from services.ring.errors import Reason, invalid_field
from services.ring.identity import ADAPTERS, POOLING
from services.ring.limits import max_pooled_tokens
from services.ring.prefixes import Prefixes
from services.ring.routing_logic import Needs
from text_core.comparison import DOCUMENT_PROMPTS, QUERY_PROMPTS, own_prompt
from text_core.pooled_inputs import InputError, Inputs, Segments, Texts

_MAX_AT_A_TIME = 256
"""Inputs that are encoded together."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked of a model, with its inputs still to be encoded."""

    field: str
    """Name of the inputs in the request."""
    inputs: Inputs
    params: pooling_pb2.PoolingParams
    form: AnswerForm
    width: int
    num_queries: int = 0

    @property
    def per_token(self) -> bool:
        return self.params.task in (pooling_pb2.POOLING_TASK_TOKEN_EMBED, pooling_pb2.POOLING_TASK_TOKEN_CLASSIFY)


class PoolingResolution:
    """One request on its way from the client's message to the engine's."""

    def __init__(self, message: PoolingMessage, served_model: ServedModel, adapter: Adapter | None = None) -> None:
        """Raises ``Refused`` for whatever needs no tokens to be seen."""
        check_pooling_request(message, served_model, has_adapter=adapter is not None)
        self._options = message.options
        self.adapter = adapter
        """That which the request names."""
        self.served_model = served_model
        self._question = _question_of(message, served_model)
        self._pooling = engine_pb2.Pooling(params=self._question.params)
        self._lengths = array("I")
        self._tokens = 0
        if not self._question.per_token:
            check_result_size(self._question.field, len(self._question.inputs.places), self._question.width)

    def advance(self, size: int) -> bool:
        """Encode inputs of about ``size`` characters or ids, at least one; returns whether all are encoded.

        Raises ``Refused``.
        """
        inputs, start = self._question.inputs, len(self._lengths)
        stop, taken = start, 0
        while stop < min(len(inputs.sizes), start + _MAX_AT_A_TIME) and (stop == start or taken < size):
            taken += inputs.sizes[stop]
            stop += 1
        try:
            encoded = inputs.encode(start, stop)
        except InputError as error:
            raise refuse(error.place, error.problem) from None
        for choice, (ids, second_text) in enumerate(encoded, start):
            self._add(choice, ids, second_text or 0)
        return stop == len(inputs.sizes)

    def _add(self, choice: int, ids: list[int], second_text: int) -> None:
        place, limits = self._question.inputs.places[choice], self.served_model.limits
        if max(ids) >= limits.vocab_size:  # a tokenizer may have more tokens than the model
            raise refuse(place, f"{max(ids)} is not in the vocabulary: expected 0 to {limits.vocab_size - 1}")
        self._lengths.append(len(ids))
        self._tokens += len(ids)
        if self._tokens > (most := max_pooled_tokens(limits.max_model_len)):
            problem = f"{self._tokens} tokens up to this input: expected at most {most}; send fewer inputs at a time"
            raise invalid_field(place, problem, reason=Reason.TOO_LARGE)
        if self._question.per_token:
            check_result_size(place, self._tokens, self._question.width)
        self._pooling.inputs.add(choice=choice, token_ids=ids, second_text=second_text)

    def resolved(self, tenant: str, traceparent: str) -> ResolvedRequest:
        """The request with everything encoded. ``traceparent``: empty if it is not traced."""
        options, model = self._options, self.served_model.model
        needs = frozenset((POOLING,) if self.adapter is None else (POOLING, ADAPTERS))
        submit = engine_pb2.Submit(
            pooling=self._pooling,
            priority=options.priority,
            tenant=tenant,
            cache_salt=cache_salt(tenant, options.cache_salt),
            traceparent=traceparent,
            requires=[*sorted(needs), *(name for name in options.requires if name in {*model.capabilities} - needs)],
            model_digest=model.model_digest,
            adapter=adapter_to_proto(self.adapter),
        )
        question = self._question
        plan = AnswerPlan(
            question.form,
            question.inputs.places,
            self._lengths,
            question.width,
            question.per_token,
            tuple(model.pooling.labels),
            question.num_queries,
            model.pooling.similarity,
        )
        return ResolvedRequest(
            packed_admitted=b"",
            packed_submit=submit.SerializeToString(),
            output_context=b"",
            prompt_tokens=self._tokens,
            num_choices=len(self._lengths),
            choices=dict.fromkeys(range(len(self._lengths)), array("I")),
            is_resume=False,
            wants_prefill_progress=False,
            prefixes=Prefixes(),  # whatever its inputs share, they share it on one engine
            num_prompt_logprobs=0,
            numerics="",
            model=model,
            needs=Needs(engine=needs, adapter=self.adapter),
            answer_plan=plan,
        )


def _question_of(message: PoolingMessage, served_model: ServedModel) -> _Question:
    if isinstance(message, inference_pb2.EmbedRequest):
        return _embedding(message, served_model)
    if isinstance(message, inference_pb2.ClassifyRequest):
        return _classification(message, served_model)
    return _scoring(message, served_model)


def _embedding(message: inference_pb2.EmbedRequest, served_model: ServedModel) -> _Question:
    task = pooling_pb2.POOLING_TASK_TOKEN_EMBED if message.per_token else pooling_pb2.POOLING_TASK_EMBED
    check_task(task, served_model, "makes no vectors" + (" of tokens" if message.per_token else ""))
    check_dimensions(message, served_model)
    check_inputs("inputs", message.inputs, served_model)
    facts = served_model.model.pooling
    prompt = prompt_text(message.prompt_name if message.HasField("prompt_name") else None, served_model)
    params = pooling_pb2.PoolingParams(
        task=task,
        normalize=message.normalize if message.HasField("normalize") else facts.normalizes,
    )
    width = facts.dimensions
    if message.HasField("dimensions"):
        params.dimensions = width = message.dimensions
    inputs = texts_of("inputs", message.inputs, prompt, message.options, served_model)
    return _Question("inputs", inputs, params, AnswerForm.VECTORS, width)


def _classification(message: inference_pb2.ClassifyRequest, served_model: ServedModel) -> _Question:
    task = pooling_pb2.POOLING_TASK_TOKEN_CLASSIFY if message.per_token else pooling_pb2.POOLING_TASK_CLASSIFY
    check_task(task, served_model, "makes no labels" + (" of tokens" if message.per_token else ""))
    check_inputs("inputs", message.inputs, served_model)
    inputs = texts_of("inputs", message.inputs, "", message.options, served_model)
    params = pooling_pb2.PoolingParams(task=task, activation=_activation(message))
    return _Question("inputs", inputs, params, AnswerForm.LABELS, len(served_model.model.pooling.labels))


def _scoring(message: inference_pb2.ScoreRequest, served_model: ServedModel) -> _Question:
    facts = served_model.model.pooling
    reads_pairs = pooling_pb2.POOLING_TASK_CLASSIFY in facts.tasks and facts.pair_form
    if not reads_pairs:
        check_task(pooling_pb2.POOLING_TASK_EMBED, served_model, "scores no pairs")
    elif len(facts.labels) != 1:
        raise wrong_model(served_model, f"has {len(facts.labels)} labels in place of a score")
    check_inputs("queries", message.queries, served_model)
    check_inputs("documents", message.documents, served_model)
    check_queries(message)
    check_instruction(message, has_place=facts.pair_form == pooling_pb2.PAIR_FORM_TEMPLATE)
    if not reads_pairs:
        return _comparison(message, served_model)
    check_repeated(message)
    inputs: Inputs
    if facts.pair_form == pooling_pb2.PAIR_FORM_TEMPLATE:
        inputs = chats_of(message, served_model)
    else:
        inputs = Segments(pairs_of(message), served_model.tokenizer, length_of(message.options, served_model))
    params = pooling_pb2.PoolingParams(task=pooling_pb2.POOLING_TASK_CLASSIFY, activation=_activation(message))
    return _Question("documents", inputs, params, AnswerForm.PAIR_SCORES, 1)


def _comparison(message: inference_pb2.ScoreRequest, served_model: ServedModel) -> _Question:
    """Queries and documents as vectors, each with the model's own prompt for its kind."""
    facts, options = served_model.model.pooling, message.options
    before = [own_prompt(names, facts.prompts, facts.default_prompt) for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS)]
    inputs = texts_of("queries", message.queries, before[0], options, served_model)
    documents = texts_of("documents", message.documents, before[1], options, served_model)
    both = Texts(
        [*inputs.places, *documents.places],
        [*inputs.inputs, *documents.inputs],
        [*inputs.prompts, *documents.prompts],
        served_model.tokenizer,
        inputs.length,
        inputs.add_special_tokens,
    )
    params = pooling_pb2.PoolingParams(task=pooling_pb2.POOLING_TASK_EMBED, normalize=facts.normalizes)
    return _Question("documents", both, params, AnswerForm.COMPARED, facts.dimensions, len(message.queries))


def _activation(message: inference_pb2.ScoreRequest | inference_pb2.ClassifyRequest) -> bool:
    return message.activation if message.HasField("activation") else True
