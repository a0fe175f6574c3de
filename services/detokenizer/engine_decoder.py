"""Decodes one engine's requests: ids to text, stop strings, and the results into the subscribers' outboxes.

All state belongs to one link: it is built from a request's first frame on that link, and dropped with the link.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import structlog
from google.protobuf.message import DecodeError
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2

from services.common.rpc.part_messages import parse_options, typed_parts
from services.common.rpc.shared_messages import OutputEntry, read_end, read_entries, read_logprobs
from services.common.telemetry.tracing import MAX_TRACEPARENT, Tracing
from services.detokenizer.subscribers import Subscriber, Subscribers
from services.ring.errors import Code, Status, invalid_field
from services.ring.events import NO_DRAFTS, ChoiceEnd, FinishReason, Fit, Prefill, TypedParts, fit
from services.ring.identity import PeerId
from services.ring.logprobs import PackedLogprobs
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions, Delta
from text_core.parsing.answer_gate import AnswerGate
from text_core.parsing.choice_parser import ChoiceParser
from text_core.tokenizer import Tokenizer

log = structlog.get_logger(__name__)


class _Choice:
    """One choice: its decoder, the parser of its text, and the log probabilities of held-back ids."""

    __slots__ = ("_to_restore", "decoder", "drafts", "logprobs", "parser")

    def __init__(self, decoder: ChoiceDecoder, parser: ChoiceParser | None) -> None:
        """``parser``: None if the answer is not divided into parts."""
        self.decoder = decoder
        self.parser = parser
        self._to_restore = decoder.delivered
        """Count of delivered ids that the parser has not seen."""
        self.logprobs: PackedLogprobs | None = None
        self.drafts = NO_DRAFTS
        """Accepted and rejected ones so far, as the engine told."""

    def feed(self, ids: Sequence[int]) -> tuple[Delta | None, TypedParts | None]:
        """Decode the next ids; returns the deliverable delta and its parts."""
        self._restore(ids)
        delta = self.decoder.feed(ids)
        if delta is None or self.parser is None:
            return delta, None
        return delta, typed_parts(self.parser.feed(delta), self.parser.reasoning_tokens)

    def finish(self, ids: Sequence[int], *, stop_token: bool) -> tuple[Delta, TypedParts | None]:
        """Decode the last ids, as ``ChoiceDecoder.finish`` does."""
        self._restore(ids)
        delta = self.decoder.finish(ids, stop_token=stop_token)
        if self.parser is None:
            return delta, None
        pieces = self.parser.feed(delta, last=True, stop_token=stop_token)
        return delta, typed_parts(pieces, self.parser.reasoning_tokens)

    def end_parts(self) -> TypedParts | None:
        """The parts that only the end of the choice completes."""
        if self.parser is None:
            return None
        return typed_parts(self.parser.finish(), self.parser.reasoning_tokens)

    def _restore(self, ids: Sequence[int]) -> None:
        if self.parser is not None and self._to_restore:
            self.parser.restore(ids[: self._to_restore])
            self._to_restore -= min(self._to_restore, len(ids))

    def hold_logprobs(self, logprobs: PackedLogprobs, count: int) -> None:
        """Hold the log probabilities of the next ``count`` ids, except those delivered before.

        ``logprobs`` are aligned to the end of the ids.
        """
        fresh = self.decoder.received + count - max(self.decoder.delivered, self.decoder.received)
        if fresh < len(logprobs):
            logprobs = logprobs.part(len(logprobs) - max(fresh, 0), len(logprobs))
        if self.logprobs is not None:
            self.logprobs.extend(logprobs)
        elif logprobs:
            self.logprobs = logprobs

    def take_logprobs(self, delta: Delta) -> PackedLogprobs | None:
        """Remove and return the log probabilities of the ids in ``delta``."""
        held, count = self.logprobs, len(delta.token_ids)
        if held is None or not count:
            return None
        if count < len(held):
            return held.take(count)
        self.logprobs = None
        return held


class _Request:
    """One request under one epoch."""

    __slots__ = ("began", "choices", "ends", "epoch", "subscriber", "traceparent")

    def __init__(self, epoch: int, subscriber: Subscriber, choices: dict[int, _Choice]) -> None:
        self.epoch = epoch
        self.subscriber = subscriber
        self.choices = choices
        """Unfinished choices."""
        self.ends: dict[int, ChoiceEnd | None] = dict.fromkeys(choices)
        self.traceparent = ""
        """W3C trace context; empty if it is not traced."""
        self.began: float | None = None
        """When the first ids arrived, monotonic seconds; None before that, or if the request is not traced."""


class EngineDecoder:
    """Decodes the outputs of one Attach stream."""

    def __init__(self, tokenizer: Tokenizer, subscribers: Subscribers, tracing: Tracing | None = None) -> None:
        self._tokenizer = tokenizer
        self._subscribers = subscribers
        self._tracing = tracing
        self._requests: dict[str, _Request] = {}
        self.decoded_tokens = 0

    @property
    def num_requests(self) -> int:
        """Requests with an unfinished choice."""
        return len(self._requests)

    def drop_subscriber(self, peer: PeerId) -> None:
        gone = [request_id for request_id, request in self._requests.items() if request.subscriber.peer == peer]
        for request_id in gone:
            del self._requests[request_id]

    def frame(self, outputs: engine_pb2.StepOutputs) -> list[engine_pb2.Command]:
        """Decode one frame into the outboxes. Returns the Stop commands to send to the engine."""
        stops: list[engine_pb2.Command] = []
        for opened in outputs.opened:
            self._open(opened)
        self._prompts(outputs)
        finishes = {(finish.request_id, finish.choice): finish for finish in outputs.finished}
        drafts = {one.entry: (one.accepted_draft_tokens, one.rejected_draft_tokens) for one in outputs.drafts}
        for index, entry in enumerate(read_entries(outputs)):
            request = self._find(entry)
            if request is not None and entry.choice in request.choices:
                finish = finishes.pop((entry.request_id, entry.choice), None) if finishes else None
                if index in drafts:
                    request.choices[entry.choice].drafts = drafts[index]
                self._advance(request, entry, finish, stops)
        for finish in finishes.values():
            request = self._find(finish)
            if request is not None and finish.choice in request.choices:
                entry = OutputEntry(finish.request_id, finish.epoch, finish.choice, finish.position, (), None)
                self._advance(request, entry, finish, stops)
        for closed in outputs.closed:
            self._close(closed)
        return stops

    def _open(self, opened: engine_pb2.Opened) -> None:
        """Start a request on this link, or restart it under a higher epoch."""
        context = detokenizer_pb2.OutputContext()
        try:
            context.ParseFromString(opened.output_context)
        except DecodeError:
            return  # not a processor's request, so there is no subscriber
        subscriber = self._subscribers.find(PeerId(context.reply_to, context.reply_incarnation))
        if subscriber is None:
            return
        # Discard unsent output of an earlier link: this link delivers it again.
        subscriber.outbox.drop(opened.request_id, opened.epoch)
        ours = self._tokenizer.fingerprint()
        if context.tokenizer_digest != ours:
            problem = f"the prompt's ids are of tokenizer {context.tokenizer_digest}, this detokenizer has {ours}"
            self._refuse(opened, subscriber, Status(Code.FAILED_PRECONDITION, problem))
            return
        try:
            choices = self._choices(opened, context)
        except ValueError as error:  # must not end the link, because it carries other requests, too
            self._refuse(opened, subscriber, invalid_field("output_context", str(error)).status)
            return
        except Exception:
            log.exception("cannot be decoded", request_id=opened.request_id)
            self._refuse(opened, subscriber, _internal_error(opened.request_id))
            return
        request = self._requests[opened.request_id] = _Request(opened.epoch, subscriber, choices)
        if self._tracing is not None and len(context.traceparent) <= MAX_TRACEPARENT:
            request.traceparent = context.traceparent

    def _choices(self, opened: engine_pb2.Opened, context: detokenizer_pb2.OutputContext) -> dict[int, _Choice]:
        """A decoder for each choice; raises ``ValueError`` for an invalid context."""
        options = DecodeOptions(
            context=tuple(context.prompt_tail),
            stop=tuple(context.stop_strings),
            include_stop_str_in_output=context.include_stop_str_in_output,
            min_tokens=context.min_tokens,
            stop_token_ids=frozenset(context.stop_token_ids),
        )
        skip = context.skip_special_tokens
        pieces = self._tokenizer.pieces(skip_special_tokens=skip)
        delivered = {one.choice: one.count for one in opened.delivered}
        parse = parse_options(context) if context.HasField("parse") else None
        if parse is not None and context.stops_in_answer_only:
            gate = partial(AnswerGate, self._tokenizer, parse, skip_special_tokens=skip)
            options = replace(options, make_gate=gate)
        choices = {}
        for choice in opened.choices:
            decoder = ChoiceDecoder(pieces, options, delivered.get(choice, 0))
            parser = None
            if parse is not None:
                parser = ChoiceParser(self._tokenizer, parse, choice, options, skip_special_tokens=skip)
            choices[choice] = _Choice(decoder, parser)
        return choices

    def _refuse(self, opened: engine_pb2.Opened, subscriber: Subscriber, status: Status) -> None:
        """End every choice with an error, and drop the request."""
        self._requests.pop(opened.request_id, None)
        delivered = {one.choice: one.count for one in opened.delivered}
        for choice in opened.choices:
            end = ChoiceEnd(FinishReason.ERROR, delivered.get(choice, 0), error=status)
            subscriber.outbox.end(opened.request_id, choice, end, epoch=opened.epoch)

    def _find(
        self, part: OutputEntry | engine_pb2.Finished | engine_pb2.Prefill | engine_pb2.PromptLogprobs
    ) -> _Request | None:
        """The request of a part of a frame; None unless its epoch matches."""
        request = self._requests.get(part.request_id)
        return request if request is not None and request.epoch == part.epoch else None

    def _prompts(self, outputs: engine_pb2.StepOutputs) -> None:
        for prefill in outputs.prefills:
            if (request := self._find(prefill)) is not None:
                progress = Prefill(prefill.prompt_tokens, prefill.computed_tokens, prefill.cached_tokens)
                request.subscriber.outbox.prefill(prefill.request_id, progress, epoch=prefill.epoch)
        for scored in outputs.prompt_logprobs:
            if (request := self._find(scored)) is not None:
                scores = read_logprobs(scored.logprobs)
                request.subscriber.outbox.prompt_logprobs(scored.request_id, scored.offset, scores, epoch=scored.epoch)

    def _advance(
        self,
        request: _Request,
        entry: OutputEntry,
        finish: engine_pb2.Finished | None,
        stops: list[engine_pb2.Command],
    ) -> None:
        """Decode the next ids of one choice, and its end if it has one."""
        request_id, _, choice, first_position, ids, logprobs = entry
        state, outbox, epoch = request.choices[choice], request.subscriber.outbox, request.epoch
        if first_position != state.decoder.received:
            if fit(first_position, len(ids), state.decoder.received) is Fit.GAP:
                return  # the processor sees the gap too, and asks for a replay
            ids = ids[state.decoder.received - first_position :]
            if logprobs is not None and len(logprobs) > len(ids):
                logprobs = logprobs.part(len(logprobs) - len(ids), len(logprobs))
        self.decoded_tokens += len(ids)
        if request.traceparent and request.began is None:
            request.began = time.monotonic()
        if logprobs:
            state.hold_logprobs(logprobs, len(ids))
        try:
            delta, parts = _decoded(state, ids, finish)
            ended = finish is not None or (delta is not None and delta.stop is not None)
            end_parts = state.end_parts() if ended else None
        except Exception:  # must not end the link, because it carries other requests, too
            self._fail(request_id, request)
            return
        if delta is not None and (delta.token_ids or delta.text):
            scores = state.take_logprobs(delta)
            first = delta.first_position
            outbox.delta(request_id, choice, first, delta.token_ids, delta.text, scores, parts, epoch=epoch)
        elif parts is not None and end_parts is not None:
            end_parts = typed_parts([*parts.pieces, *end_parts.pieces], end_parts.reasoning_tokens)
        if delta is not None and delta.stop is not None:
            stop = engine_pb2.Stop(request_id=request_id, epoch=epoch, choice=choice, position=delta.end)
            stops.append(engine_pb2.Command(stop=stop))
            token, text = (delta.stop, None) if isinstance(delta.stop, int) else (None, delta.stop)
            end = ChoiceEnd(FinishReason.STOP, delta.end, token, text, parts=end_parts, drafts=state.drafts)
            self._end(request_id, request, choice, end)
        elif finish is not None:
            self._end(request_id, request, choice, replace(read_end(finish), parts=end_parts))

    def _end(self, request_id: str, request: _Request, choice: int, end: ChoiceEnd) -> None:
        request.subscriber.outbox.end(request_id, choice, end, epoch=request.epoch)
        request.ends[choice] = end
        del request.choices[choice]
        if not request.choices:
            del self._requests[request_id]
            self._finished(request_id, request)

    def _fail(self, request_id: str, request: _Request) -> None:
        """Log the current exception, and end every unfinished choice at its delivered length."""
        log.exception("cannot be decoded", request_id=request_id)
        del self._requests[request_id]
        for choice, state in request.choices.items():
            tokens = None if state.parser is None else TypedParts(reasoning_tokens=state.parser.reasoning_tokens)
            error = _internal_error(request_id)
            end = ChoiceEnd(FinishReason.ERROR, state.decoder.delivered, error=error, parts=tokens)
            request.subscriber.outbox.end(request_id, choice, end, epoch=request.epoch)

    def _finished(self, request_id: str, request: _Request) -> None:
        """Log a request that ended or was closed, and export its span."""
        tokens = sum(end.position for end in request.ends.values() if end)
        log.debug(
            "request finished",
            request_id=request_id,
            epoch=request.epoch,
            finish_reasons={choice: end and end.finish_reason.name for choice, end in request.ends.items()},
            completion_tokens=tokens,
        )
        if self._tracing is not None and request.began is not None:
            about: dict[str, str | int] = {"ringline.request_id": request_id, "ringline.epoch": request.epoch}
            about |= {"gen_ai.usage.output_tokens": tokens}
            self._tracing.span("detokenize", request.traceparent, request.began, time.monotonic(), about)

    def _close(self, closed: engine_pb2.Closed) -> None:
        request = self._requests.get(closed.request_id)
        if request is not None and request.epoch <= closed.epoch:
            del self._requests[closed.request_id]
            self._finished(closed.request_id, request)
            request.subscriber.outbox.drop(closed.request_id, closed.epoch)


def _internal_error(request_id: str) -> Status:
    return Status(Code.INTERNAL, f"internal error; find {request_id} in the detokenizer's log")


def _decoded(
    state: _Choice, ids: Sequence[int], finish: engine_pb2.Finished | None
) -> tuple[Delta | None, TypedParts | None]:
    if finish is None:
        return state.feed(ids)
    return state.finish(ids, stop_token=finish.HasField("stop_token_id"))
