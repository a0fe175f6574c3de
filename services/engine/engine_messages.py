"""Conversions between protobuf, ``engine_core`` and the ring: Submit → Request, outputs → events → messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import constraint_pb2, output_pb2, part_pb2, sampling_pb2

from engine_core.config import ModelSpec, SchedulerConfig
from engine_core.errors import InvalidRequestError, QueueFullError, RequestError
from engine_core.executor.base import RankPlace
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.media import MediaItem, Picture, PictureShape
from engine_core.pooling.params import Pooled
from engine_core.request import BeamSearch, Finish, NoRepeatNgram, ReasoningBudget, Request, SamplingParams
from engine_core.request import FinishReason as CoreFinishReason
from engine_core.validation import MAX_LOGPROBS
from services.common.rpc.constraint_messages import read_answer_form
from services.common.rpc.shared_messages import peer_changes_to_proto, status_to_proto, write_logprobs
from services.common.telemetry.tracing import MAX_TRACEPARENT
from services.engine.adapters.messages import FindAdapter, adapter_of, no_adapter
from services.engine.adapters.registry import Generation
from services.engine.grammar_queue import EngineRequest
from services.engine.media_store import PictureHeader
from services.engine.pooling_messages import check_generates, facts_message, pooled_message, pooling_submission_of
from services.engine.submit_limits import check_size
from services.ring import events
from services.ring.errors import Code, Status, invalid_field
from services.ring.events import NO_DRAFTS, ChoiceEnd, FinishReason, Prefill
from services.ring.identity import ENGINE_CAPABILITIES, MEDIA, check_requires
from services.ring.ledger import LedgerEntry, Submission
from services.ring.outbound_link import OutputFrame
from text_core.answer_grammar import answer_grammar
from text_core.grammar.grammar_text import Marker

_FINISH_REASONS = {
    CoreFinishReason.STOP: FinishReason.STOP,
    CoreFinishReason.LENGTH: FinishReason.LENGTH,
    CoreFinishReason.CANCELLED: FinishReason.CANCELLED,
    CoreFinishReason.DEADLINE: FinishReason.DEADLINE,
    CoreFinishReason.ERROR: FinishReason.ERROR,
}
_FIELDS = {
    "bad_words_token_ids": "bad_words",
    **{name: f"sampling.{name}" for name in engine_pb2.SamplingParams.DESCRIPTOR.fields_by_name},
    "deadline": "timeout_ms",
    "grammar": "constraint",
    "task": "pooling.params.task",
    "dimensions": "pooling.params.dimensions",
}
"""Maps fields of the core's request to their name in a Submit, where the two differ."""
_EARLY_STOPPING: dict[int, bool | None] = {
    sampling_pb2.BeamSearch.EARLY_STOPPING_YES: True,
    sampling_pb2.BeamSearch.EARLY_STOPPING_NEVER: None,
}
"""False for all others."""
_IDS_PER_PLACE = 8
"""Token ids that take as much memory as a picture's place."""


def no_picture(digest: bytes) -> Picture:
    """Raises ``Refused``: the model takes no pictures."""
    check_requires([MEDIA], ())
    raise AssertionError


def submission_of(
    submit: engine_pb2.Submit,
    model: ModelSpec,
    now: float,
    capabilities: Collection[str] = ENGINE_CAPABILITIES,
    find_picture: Callable[[bytes], Picture] = no_picture,
    find_adapter: FindAdapter = no_adapter,
) -> Submission[EngineRequest]:
    """The ring's and the core's forms of a Submit; ``now`` is on the core's clock, ``capabilities`` are this engine's.

    ``find_picture`` returns a picture by its digest, or raises ``Refused``.

    Raises ``Refused`` for sizes and contradictions; the core validates values against the model.
    """
    if submit.HasField("pooling"):
        return pooling_submission_of(submit, model, now, capabilities, find_adapter)
    check_generates(submit, model)
    check_size(submit, model, capabilities)
    params = sampling_params_of(submit)
    resume = {resumed.choice: tuple(resumed.token_ids) for resumed in submit.resume}
    if len(resume) < len(submit.resume):
        raise invalid_field("resume", "a choice is listed twice")
    timeout = submit.timeout_ms / 1000 if submit.HasField("timeout_ms") else None
    request = Request(
        request_id=submit.request_id,
        prompt_token_ids=tuple(submit.prompt_token_ids),
        params=params,
        priority=submit.priority,
        tenant=submit.tenant,
        cache_salt=submit.cache_salt,
        deadline=None if timeout is None else now + timeout,
        resume=resume,
        media=tuple(MediaItem(find_picture(place.digest), place.offset) for place in submit.media),
        speculation=submit.speculation if submit.HasField("speculation") else True,
    )
    return Submission(
        request_id=submit.request_id,
        epoch=submit.epoch,
        deliver_to=submit.deliver_to,
        output_context=submit.output_context,
        choices=resume or dict.fromkeys(range(params.n), ()),
        max_tokens=min(params.max_tokens, model.max_model_len - len(request.prompt_token_ids)),
        logprobs=params.logprobs,
        prompt_tokens=len(request.prompt_token_ids),
        prompt_logprobs=params.prompt_logprobs,
        num_ids=_num_ids(submit),
        constraint_bytes=submit.constraint.ByteSize() + submit.parse.ByteSize(),
        beams=0 if params.beam_search is None else params.beam_search.width,
        tenant=submit.tenant,
        core_request=_engine_request(request, submit, adapter_of(submit, capabilities, find_adapter)),
        traceparent=submit.traceparent if len(submit.traceparent) <= MAX_TRACEPARENT else "",
    )


def _engine_request(request: Request, submit: engine_pb2.Submit, adapter: Generation | None) -> EngineRequest:
    if not submit.HasField("constraint"):
        return EngineRequest(request, adapter=adapter)
    constraint, parse = constraint_pb2.Constraint(), part_pb2.ParseParams()
    constraint.CopyFrom(submit.constraint)  # submessages would keep the whole frame in memory
    parse.CopyFrom(submit.parse)
    return EngineRequest(request, partial(_grammar, constraint, parse), adapter)


def _grammar(constraint: constraint_pb2.Constraint, parse: part_pb2.ParseParams, marker: Marker) -> str:
    return answer_grammar(read_answer_form(constraint, parse), marker)


def _num_ids(submit: engine_pb2.Submit) -> int:
    """Token ids in the lists that stay in memory while the request runs. A logit bias counts as two ids."""
    lists = [submit.prompt_token_ids, submit.sampling.allowed_token_ids, submit.stop_token_ids]
    lists += [resumed.token_ids for resumed in submit.resume]
    lists += [word.ids for word in submit.bad_words]
    budget = submit.reasoning_budget
    lists += [budget.closing, budget.opening, budget.again, budget.blank]
    lists.append(submit.sampling.no_repeat_ngram.allowed_token_ids)
    return sum(map(len, lists)) + _IDS_PER_PLACE * len(submit.media) + 2 * len(submit.sampling.logit_bias)


def sampling_params_of(submit: engine_pb2.Submit) -> SamplingParams:
    """The core's sampling parameters; an absent scalar becomes its neutral value."""
    sampling = submit.sampling
    beams = _beam_search_of(submit.beam_search) if submit.HasField("beam_search") else None
    neutral = SamplingParams(temperature=1.0 if beams is None else 0.0)

    def scalar(name: str) -> float:
        return float(getattr(sampling if sampling.HasField(name) else neutral, name))  # type: ignore[arg-type]

    return SamplingParams(
        temperature=scalar("temperature"),
        top_k=sampling.top_k or None,
        top_p=scalar("top_p"),
        min_p=scalar("min_p"),
        frequency_penalty=scalar("frequency_penalty"),
        presence_penalty=scalar("presence_penalty"),
        repetition_penalty=scalar("repetition_penalty"),
        logit_bias=dict(sampling.logit_bias),
        bad_words_token_ids=tuple(tuple(word.ids) for word in submit.bad_words),
        allowed_token_ids=tuple(sampling.allowed_token_ids) or None,
        seed=sampling.seed,
        n=sampling.n if sampling.HasField("n") else 1,
        max_tokens=submit.max_tokens,
        min_tokens=submit.min_tokens,
        stop_token_ids=frozenset(submit.stop_token_ids),
        ignore_eos=submit.ignore_eos,
        logprobs=submit.logprobs if submit.HasField("logprobs") else None,
        prompt_logprobs=submit.prompt_logprobs if submit.HasField("prompt_logprobs") else None,
        no_repeat_ngram=_no_repeat_ngram_of(sampling.no_repeat_ngram) if sampling.HasField("no_repeat_ngram") else None,
        reasoning_budget=_budget_of(submit.reasoning_budget) if submit.HasField("reasoning_budget") else None,
        beam_search=beams,
    )


def _beam_search_of(search: sampling_pb2.BeamSearch) -> BeamSearch:
    penalty = search.length_penalty if search.HasField("length_penalty") else 1.0
    return BeamSearch(search.width, penalty, _EARLY_STOPPING.get(search.early_stopping, False))


def _no_repeat_ngram_of(rule: sampling_pb2.NoRepeatNgram) -> NoRepeatNgram:
    return NoRepeatNgram(rule.ngram_size, rule.window_size, frozenset(rule.allowed_token_ids))


def header_of(header: engine_pb2.MediaHeader) -> PictureHeader:
    """A picture's shape and the sides of its views."""
    shape = PictureShape(header.num_tokens, header.rows, header.columns, header.token_rows, header.token_columns)
    return PictureHeader(shape, [(view.height, view.width) for view in header.views])


def _budget_of(budget: engine_pb2.ReasoningBudget) -> ReasoningBudget:
    return ReasoningBudget(
        budget.max_tokens,
        tuple(budget.closing),
        tuple(budget.opening),
        tuple(budget.again),
        frozenset(budget.blank),
        budget.begun,
    )


def status_of(error: RequestError, retry_after_ms: int) -> Status:
    """The status of a refusal by the core; ``retry_after_ms`` is used if the queue is full."""
    match error:
        case InvalidRequestError():
            field = _FIELDS.get(error.field, error.field)
            if field.startswith("inputs"):
                field = f"pooling.{field}"
            return invalid_field(field, error.problem).status
        case QueueFullError():
            return Status(Code.RESOURCE_EXHAUSTED, str(error), retry_after_ms)
        case _:
            return Status(Code.INTERNAL, str(error))


def end_of(
    finish: Finish,
    position: int,
    drafts: tuple[int, int] = NO_DRAFTS,
    beam_score: float | None = None,
    pooled: Pooled | None = None,
) -> ChoiceEnd:
    """The end of a choice that has ``position`` output tokens; ``drafts``: its accepted and its rejected ones."""
    error = None
    if finish.error is not None and finish.error_field is not None:
        error = invalid_field(_FIELDS.get(finish.error_field, finish.error_field), finish.error).status
    elif finish.error is not None:
        error = Status(Code.INTERNAL, finish.error)
    return ChoiceEnd(
        _FINISH_REASONS[finish.finish_reason],
        position,
        finish.stop_token_id,
        error=error,
        drafts=drafts,
        beam_score=beam_score,
        pooled=None if pooled is None else events.Pooled(pooled.values, pooled.rows),
    )


def rank_messages(ranks: Sequence[RankPlace]) -> list[engine_pb2.RankProcess]:
    """The processes of an engine's ranks."""
    return [engine_pb2.RankProcess(rank=each.rank, host=each.host, pid=each.pid) for each in ranks]


def model_message(
    spec: ModelSpec,
    cache: KVCacheConfig,
    scheduler: SchedulerConfig,
    *,
    tokenizer_digest: str,
    model_digest: str,
    numerics: str,
    capabilities: Iterable[str] = ENGINE_CAPABILITIES,
    media_memory_bytes: int = 0,
) -> engine_pb2.GetModelResponse:
    """The answer of GetModel."""
    defaults = engine_pb2.SamplingDefaults()
    for name, value in spec.default_sampling.items():
        setattr(defaults, name, int(value) if name == "top_k" else value)
    return engine_pb2.GetModelResponse(
        model=spec.name,
        architecture=spec.architecture,
        vocab_size=spec.vocab_size,
        max_model_len=spec.max_model_len,
        eos_token_ids=spec.eos_token_ids,
        dtype=spec.dtype,
        tokenizer_digest=tokenizer_digest,
        model_digest=model_digest,
        numerics=numerics,
        default_sampling=defaults,
        max_logprobs=MAX_LOGPROBS,
        block_size=cache.block_size,
        num_blocks=cache.num_blocks,
        max_num_queued_reqs=scheduler.max_num_queued_reqs,
        max_num_seqs=cache.most_running(scheduler.max_num_seqs),
        capabilities=capabilities,
        num_parameters=spec.num_parameters,
        media_memory_bytes=media_memory_bytes,
        pooling=None if spec.pooling is None else facts_message(spec.pooling),
    )


def response_of(frame: OutputFrame) -> engine_pb2.AttachResponse:
    """The message for one frame."""
    response = engine_pb2.AttachResponse()
    if frame.peers is not None:
        response.peers.CopyFrom(peer_changes_to_proto(frame.peers))
    for rejected in frame.rejections:
        response.rejections.add(
            request_id=rejected.request_id,
            epoch=rejected.epoch,
            in_reply_to=rejected.in_reply_to,
            status=status_to_proto(rejected.status),
        )
    if frame.opened or frame.prefills or frame.prompt_logprobs or frame.request_ids or frame.ends or frame.closed:
        response.outputs.CopyFrom(_outputs(frame))
    return response


def _outputs(frame: OutputFrame) -> engine_pb2.StepOutputs:
    outputs = engine_pb2.StepOutputs(
        opened=map(_opened, frame.opened),
        prefills=[_prefill(*prefill) for prefill in frame.prefills],
        request_ids=frame.request_ids,
        epochs=frame.epochs,
        choices=frame.choices,
        first_positions=frame.first_positions,
        token_counts=frame.token_counts,
        token_ids=frame.token_ids,
        finished=[_finished(*end) for end in frame.ends],
        closed=[engine_pb2.Closed(request_id=request_id, epoch=epoch) for request_id, epoch in frame.closed],
    )
    for request_id, epoch, offset, scores in frame.prompt_logprobs:
        part = outputs.prompt_logprobs.add(request_id=request_id, epoch=epoch, offset=offset)
        write_logprobs(part.logprobs, scores)
    for entry, scores in frame.logprobs:
        write_logprobs(outputs.logprobs.add(entry=entry).logprobs, scores)
    for entry, (accepted, rejected) in frame.drafts:
        outputs.drafts.add(entry=entry, accepted_draft_tokens=accepted, rejected_draft_tokens=rejected)
    return outputs


def _opened(entry: LedgerEntry) -> engine_pb2.Opened:
    return engine_pb2.Opened(
        request_id=entry.request_id,
        epoch=entry.epoch,
        output_context=entry.output_context,
        delivered=[engine_pb2.Delivered(choice=choice, count=count) for choice, count in entry.delivered.items()],
        choices=entry.choices,
    )


def _prefill(request_id: str, epoch: int, prefill: Prefill) -> engine_pb2.Prefill:
    return engine_pb2.Prefill(
        request_id=request_id,
        epoch=epoch,
        prompt_tokens=prefill.prompt_tokens,
        computed_tokens=prefill.computed_tokens,
        cached_tokens=prefill.cached_tokens,
    )


def _finished(request_id: str, epoch: int, choice: int, end: ChoiceEnd) -> engine_pb2.Finished:
    return engine_pb2.Finished(
        request_id=request_id,
        epoch=epoch,
        choice=choice,
        position=end.position,
        finish_reason=output_pb2.FinishReason.ValueType(end.finish_reason),
        stop_token_id=end.stop_token_id,
        error=None if end.error is None else status_to_proto(end.error),
        accepted_draft_tokens=end.drafts[0],
        rejected_draft_tokens=end.drafts[1],
        beam_score=end.beam_score,
        pooled=None if end.pooled is None else pooled_message(end.pooled),
    )
