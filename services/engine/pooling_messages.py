"""Conversions between protobuf, ``engine_core`` and the ring for requests whose inputs are pooled."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import fields

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import pooling_pb2

from engine_core.config import ModelSpec
from engine_core.pooling.facts import PairForm, PoolingFacts
from engine_core.pooling.params import PoolingInput, PoolingParams, PoolingRequest, PoolingTask
from engine_core.pooling.validation import result_bytes
from services.common.telemetry.tracing import MAX_TRACEPARENT
from services.engine.adapters.messages import FindAdapter, adapter_of, no_adapter
from services.engine.grammar_queue import EngineRequest
from services.engine.submit_limits import check_envelope
from services.ring.errors import Code, Reason, Refused, invalid_field
from services.ring.events import Pooled
from services.ring.identity import POOLING, check_requires
from services.ring.ledger import Submission
from services.ring.limits import MAX_POOLED_BYTES, MAX_POOLED_CHOICES, max_pooled_tokens

_TASKS = {
    pooling_pb2.POOLING_TASK_EMBED: PoolingTask.EMBED,
    pooling_pb2.POOLING_TASK_TOKEN_EMBED: PoolingTask.TOKEN_EMBED,
    pooling_pb2.POOLING_TASK_CLASSIFY: PoolingTask.CLASSIFY,
    pooling_pb2.POOLING_TASK_TOKEN_CLASSIFY: PoolingTask.TOKEN_CLASSIFY,
}
_TASK_NUMBERS = {task: number for number, task in _TASKS.items()}
_PAIR_FORMS = {
    None: pooling_pb2.PAIR_FORM_UNSPECIFIED,
    PairForm.SEGMENTS: pooling_pb2.PAIR_FORM_SEGMENTS,
    PairForm.TEMPLATE: pooling_pb2.PAIR_FORM_TEMPLATE,
}
_FIELDS = frozenset(
    (
        "request_id",
        "epoch",
        "deliver_to",
        "output_context",
        "priority",
        "tenant",
        "cache_salt",
        "timeout_ms",
        "traceparent",
        "requires",
        "model_digest",
        "pooling",
        "adapter",
    )
)
"""What a Submit may have whose inputs are pooled."""
_IDS_PER_INPUT = 10
"""Token ids that take as much memory as an input's record."""


def check_generates(submit: engine_pb2.Submit, model: ModelSpec) -> None:
    """Raise ``Refused`` for a Submit that asks a model for tokens which makes none."""
    if model.pooling is not None:
        tasks = ", ".join(task.value for task in model.pooling.tasks)
        message = f"pooling: absent, and {model.name} generates no tokens: expected inputs to pool ({tasks})"
        raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.CAPABILITY_MISSING, field="pooling")


def pooling_submission_of(
    submit: engine_pb2.Submit,
    model: ModelSpec,
    now: float,
    capabilities: Collection[str],
    find_adapter: FindAdapter = no_adapter,
) -> Submission[EngineRequest]:
    """As ``submission_of``, for a Submit with ``pooling``."""
    check_requires(submit.requires, capabilities)
    if model.pooling is None:
        check_requires([POOLING], capabilities)
        raise AssertionError("an engine with the capability has a model that pools")
    for descriptor, _ in submit.ListFields():
        if descriptor.name not in _FIELDS:
            raise invalid_field(
                descriptor.name, "set, and so is pooling, which makes no tokens: expected one of the two"
            )
    check_envelope(submit)
    request = PoolingRequest(
        request_id=submit.request_id,
        inputs=_inputs_of(submit.pooling, model),
        params=_params_of(submit.pooling.params, model.pooling),
        priority=submit.priority,
        tenant=submit.tenant,
        cache_salt=submit.cache_salt,
        deadline=now + submit.timeout_ms / 1000 if submit.HasField("timeout_ms") else None,
    )
    tokens = sum(len(each.token_ids) for each in request.inputs.values())
    return Submission(
        request_id=submit.request_id,
        epoch=submit.epoch,
        deliver_to=submit.deliver_to,
        output_context=submit.output_context,
        choices=dict.fromkeys(request.inputs, ()),
        max_tokens=0,
        logprobs=None,
        prompt_tokens=tokens,
        prompt_logprobs=None,
        num_ids=tokens + _IDS_PER_INPUT * len(request.inputs),
        tenant=submit.tenant,
        core_request=EngineRequest(request, adapter=adapter_of(submit, capabilities, find_adapter)),
        traceparent=submit.traceparent if len(submit.traceparent) <= MAX_TRACEPARENT else "",
        pooled_bytes=_result_bytes(request, model.pooling),
    )


def _inputs_of(pooling: engine_pb2.Pooling, model: ModelSpec) -> dict[int, PoolingInput]:
    if not 1 <= len(pooling.inputs) <= MAX_POOLED_CHOICES:
        raise invalid_field("pooling.inputs", f"{len(pooling.inputs)} inputs: expected 1 to {MAX_POOLED_CHOICES}")
    inputs: dict[int, PoolingInput] = {}
    last, tokens, most = -1, 0, max_pooled_tokens(model.max_model_len)
    for index, each in enumerate(pooling.inputs):
        field, length = f"pooling.inputs[{index}]", len(each.token_ids)
        if not last < each.choice < MAX_POOLED_CHOICES:
            problem = f"{each.choice} is out of range: expected {last + 1} to {MAX_POOLED_CHOICES - 1}, ascending"
            raise invalid_field(f"{field}.choice", problem)
        if not 1 <= length <= model.max_model_len:
            raise invalid_field(f"{field}.token_ids", f"{length} ids: expected 1 to {model.max_model_len}")
        if each.second_text >= length:
            problem = f"{each.second_text} is out of range: expected less than the input's {length} ids"
            raise invalid_field(f"{field}.second_text", problem)
        last, tokens = each.choice, tokens + length
        if tokens > most:
            problem = f"{tokens} ids up to this input: expected at most {most} together; send fewer inputs at a time"
            raise invalid_field(field, problem, reason=Reason.TOO_LARGE)
        inputs[each.choice] = PoolingInput(tuple(each.token_ids), each.second_text or None)
    return inputs


def _params_of(params: pooling_pb2.PoolingParams, facts: PoolingFacts) -> PoolingParams:
    task = _TASKS.get(params.task)
    if task not in facts.tasks:
        known = ", ".join(one.value for one in facts.tasks)
        problem = f"{'unknown' if task is None else task.value} is not computed by this model: expected one of {known}"
        raise Refused(
            Code.FAILED_PRECONDITION,
            f"pooling.params.task: {problem}",
            reason=Reason.UNSUPPORTED,
            field="pooling.params.task",
        )
    assert task is not None
    return PoolingParams(
        task,
        dimensions=params.dimensions if params.HasField("dimensions") else None,
        normalize=params.normalize if params.HasField("normalize") else task.embeds and facts.normalizes,
        activation=params.activation if params.HasField("activation") else True,
    )


def _result_bytes(request: PoolingRequest, facts: PoolingFacts) -> int:
    """Of all inputs' results; raises ``Refused`` if that is too much to send at a time."""
    if (size := result_bytes(request, facts)) > MAX_POOLED_BYTES:
        problem = f"results of {size} bytes: expected at most {MAX_POOLED_BYTES}; send fewer inputs at a time"
        raise invalid_field("pooling.inputs", problem, reason=Reason.TOO_LARGE)
    return size


def facts_message(facts: PoolingFacts) -> pooling_pb2.PoolingFacts:
    """What the model computes, for whoever asks it."""
    return pooling_pb2.PoolingFacts(
        tasks=[_TASK_NUMBERS[task] for task in facts.tasks],
        dimensions=facts.dimensions,
        is_matryoshka=facts.is_matryoshka,
        matryoshka_dimensions=facts.matryoshka_dimensions,
        normalizes=facts.normalizes,
        labels=facts.labels,
        prompts=dict(facts.prompts),
        default_prompt=facts.default_prompt,
        pair_form=_PAIR_FORMS[facts.pair_form],
        similarity=facts.similarity.value,
    )


def facts_json(facts: PoolingFacts | None) -> str:
    """The facts as they enter the model's digest; empty for a model that generates."""
    if facts is None:
        return ""
    plain = {each.name: getattr(facts, each.name) for each in fields(facts)}
    plain["prompts"] = dict(facts.prompts)
    return json.dumps(plain, sort_keys=True, default=lambda member: member.value)


def pooled_message(pooled: Pooled) -> pooling_pb2.PooledOutput:
    """The result of one input."""
    return pooling_pb2.PooledOutput(values=pooled.values, rows=pooled.rows)
