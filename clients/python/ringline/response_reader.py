"""Reads the responses of one request: checks the protocol, turns messages into events, and keeps what was delivered.

One reader serves all attempts at a request, so a resume loses nothing delivered before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from ringline.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    RingError,
    Truncated,
    Unavailable,
    from_status,
)
from ringline.inference.v1 import inference_pb2 as pb
from ringline.outputs import Admitted, Choice, Partial, TokenLogprob, Usage
from ringline.packed_logprobs import PackedLogprobs, logprobs_from
from ringline.parts import Content, Joints, Part, Reasoning, ToolCall, ToolCallPiece
from ringline.results import (
    Delta,
    Event,
    Finished,
    Generation,
    Prefill,
    PromptLogprobs,
    Resumed,
    Started,
    adapter_from,
    admitted_from,
    failure_of,
    finish_reason_of,
    part_from,
    usage_from,
)
from ringline.types.v1 import output_pb2, part_pb2, sampling_pb2

_FINAL = (Cancelled, DeadlineExceeded, InvalidRequest, PermissionDenied, ProtocolError)
"""Errors that end a request for good. Any other end of a stream means a lost connection or server."""


@dataclass(slots=True)
class _ChoiceLog:
    """Everything delivered of one choice."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[bytes] | None = None
    """Serialized ``Logprobs`` messages."""
    contents: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    joints: Joints = field(default_factory=Joints)
    calls: list[list[ToolCallPiece]] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, part: Part) -> bool:
        """Keep a piece; False for a tool call's piece that neither continues a known call nor begins the next one."""
        (part,) = self.joints.joined((part,))
        if isinstance(part, Content):
            self.contents.append(part.text)
        elif isinstance(part, Reasoning):
            self.reasonings.append(part.text)
        elif part.index < len(self.calls):
            self.calls[part.index].append(part)
        elif part.index == len(self.calls) and part.name:
            self.calls.append([part])
        else:
            return False
        return True

    @property
    def token_logprobs(self) -> PackedLogprobs | None:
        """One per token; None if none arrived."""
        return None if self.logprobs is None else PackedLogprobs(self.logprobs, len(self.token_ids))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(c[0].id, c[0].name, "".join(piece.arguments for piece in c)) for c in self.calls)


@dataclass(slots=True)
class _AttemptProgress:
    """What the current attempt's server has sent."""

    admitted: bool = False
    choices: set[int] = field(default_factory=set)
    """The choices that this attempt computes."""
    unfinished: set[int] = field(default_factory=set)
    """The ``choices`` that have not ended."""
    prompt_logprobs: int = 0
    """Number of prompt logprobs received."""
    not_final: RingError | None = None
    """The error of a choice that ended UNAVAILABLE or that a full engine refused: another attempt may continue it."""


class ResponseReader:
    """A state machine over: Admitted, deltas, the end of each choice, the end of the request; or one refusal.

    A later attempt repeats this for the unfinished choices. Unknown events are skipped.
    """

    def __init__(self, *, hides_prompt: bool = False, read_json: Callable[[str], Any] | None = None) -> None:
        """``hides_prompt``: leave the prompt's ids out of ``admitted``, because the caller did not ask for them.

        ``read_json``: parser of a choice's content; None if that is not JSON.
        """
        self.admitted: Admitted | None = None
        self.admitted_message: pb.Admitted | None = None
        """The first server's message, the source of ``admitted``."""
        self.failure: RingError | None = None
        """The error of the first choice that failed; known when ``done``."""
        self.resumed = 0
        """Number of resumes."""
        self.cut: RingError | None = None
        """The error that ended the last admitted attempt."""
        self._hides_prompt = hides_prompt
        self._read_json = read_json
        self._logs: list[_ChoiceLog] = []
        self._usage: Usage | None = None
        self._cached_tokens = 0
        """From the last Prefill."""
        self._started: pb.Started | None = None
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._progress = _AttemptProgress()

    @property
    def done(self) -> bool:
        """Whether the request, and so every choice, has ended."""
        return self._usage is not None

    @property
    def usage(self) -> Usage | None:
        """The request's token counts; None until it has ended."""
        return self._usage

    @property
    def has_prompt_logprobs(self) -> bool:
        """Whether all entries have arrived; meaningless if the request asked for none."""
        return len(self._prompt_logprobs or ()) >= (self.admitted.prompt_tokens - 1 if self.admitted else 0)

    def resume(self) -> pb.Resume:
        """The unfinished choices with their delivered token ids, and the model and numerics that computed them."""
        choices = [
            sampling_pb2.ResumedChoice(choice=choice, token_ids=log.token_ids)
            for choice, log in enumerate(self._logs)
            if log.finished is None
        ]
        admitted, started = self.admitted_message or pb.Admitted(), self._started or pb.Started()
        model_digest = started.model_digest or admitted.model_digest
        return pb.Resume(
            choices=choices,
            model_digest=model_digest,
            numerics=started.numerics,
            adapter_digest=admitted.adapter.digest,
        )

    @property
    def has_output(self) -> bool:
        """Whether anything was delivered that the rest of the answer must fit."""
        began = any(log.token_ids or log.finished for log in self._logs)
        return began or bool(self._prompt_logprobs)

    def begin(self, choices: Sequence[int]) -> None:
        """Start an attempt at ``choices``; empty for the first attempt, whose choices Admitted gives."""
        self._progress = _AttemptProgress(choices=set(choices), unfinished=set(choices))
        self._usage = None

    def read(self, response: pb.GenerateResponse) -> list[Event]:
        """The response's events for the caller, if any.

        Raises a refusal's error, ProtocolError for a breach of the contract, and, at the end of the request, the error
        of a choice that another attempt may continue.
        """
        if response.HasField("choice_finished"):
            return self._read_choice_finished(response.choice_finished)
        event = self._read_one(response)
        return [] if event is None else [event]

    def generation(self) -> Generation:
        """The whole answer; raises ``failure`` if a choice failed."""
        assert self.done, "the request has not ended"
        if self.failure is not None:
            raise self.failure
        assert self.admitted is not None
        assert self._usage is not None
        prompt_logprobs = None if self._prompt_logprobs is None else tuple(self._prompt_logprobs)
        return Generation(self._choices(), self._usage, self.admitted, prompt_logprobs, self.resumed)

    def lost(self, cause: RingError) -> RingError | None:
        """The error of a lost stream. None if every choice had ended: then the request counts as done."""
        if isinstance(cause, _FINAL) or not self._logs or any(log.finished is None for log in self._logs):
            return self.ended(cause)
        assert self.admitted is not None
        tokens = self._num_tokens(range(len(self._logs)))
        reasoning = self._reasoning_tokens(range(len(self._logs)))
        self._usage = Usage(self.admitted.prompt_tokens, self._cached_tokens, tokens, reasoning)
        self._note_failure()
        return None

    def ended(self, cause: RingError) -> RingError:
        """The error of a stream that ended before the request did, because of ``cause``."""
        if isinstance(cause, _FINAL) or not self._progress.admitted:
            return self._with_partial(cause)
        return self._cut(Truncated(f"the stream ended before the request did: {cause}"))

    def _cut(self, error: RingError) -> RingError:
        self.cut = error
        return self._with_partial(error)

    def _read_one(self, response: pb.GenerateResponse) -> Event | None:
        kind = response.WhichOneof("event")
        if kind == "delta":
            return self._read_delta(response.delta)
        if kind == "request_finished":
            self._read_request_finished(response.request_finished)
            return None
        if kind == "admitted":
            return self._read_admitted(response.admitted)
        if kind == "refused":
            raise self._refusal(response.refused)
        if kind is None:
            return None  # an event of a later version of the contract
        if not self._progress.admitted or self.done:
            raise self._breach(f"{kind} before admitted, or after the request's end")
        if kind == "prefill":
            self._cached_tokens = response.prefill.cached_tokens
            return Prefill(response.prefill.computed_tokens, response.prefill.cached_tokens)
        if kind == "prompt_logprobs":
            return self._read_prompt_logprobs(response.prompt_logprobs)
        started = self._started = response.started
        return Started(started.model_digest, started.numerics, started.identical, started.reason)

    def _read_admitted(self, message: pb.Admitted) -> Event:
        if self._progress.admitted:
            raise self._breach("admitted was sent twice")
        self._progress.admitted = True
        if self.admitted_message is not None:
            return self._read_resumed(self.admitted_message, message)
        self.admitted_message = message
        n = max(1, message.sampling.n)
        self._progress.choices, self._progress.unfinished = set(range(n)), set(range(n))
        self._logs = [_ChoiceLog() for _ in range(n)]
        if message.output.HasField("prompt_logprobs"):
            self._prompt_logprobs = []
        visible = message
        if self._hides_prompt:
            visible = pb.Admitted()
            visible.CopyFrom(message)
            visible.ClearField("prompt_token_ids")
            visible.output.return_prompt_token_ids = False
        self.admitted = admitted_from(visible)
        return self.admitted

    def _read_resumed(self, first: pb.Admitted, message: pb.Admitted) -> Event:
        agreed = {
            "prompt_tokens": message.prompt_tokens == first.prompt_tokens,
            "sampling": _agree(first.sampling, message.sampling),
            "stopping": _agree(first.stopping, message.stopping),
            "beam_search": _agree(first.beam_search, message.beam_search),
            "adapter": first.adapter == message.adapter or not self.has_output,
            "constraint": first.HasField("constraint") == message.HasField("constraint")
            and _agree(first.constraint, message.constraint),
        }
        if others := [name for name, same in agreed.items() if not same]:
            raise self._breach(f"the resumed request has another {others[0]} than before")
        if self.admitted is not None and message.HasField("adapter"):  # it may have been replaced before any output
            first.adapter.CopyFrom(message.adapter)
            self.admitted = replace(self.admitted, adapter=adapter_from(message.adapter))
        self.resumed += 1
        return Resumed(str(self.cut))

    def _read_prompt_logprobs(self, message: pb.PromptLogprobs) -> Event | None:
        if self._prompt_logprobs is None:
            self._prompt_logprobs = []
        offset = self._progress.prompt_logprobs
        if message.offset != offset:
            raise self._breach(f"prompt log probabilities from {message.offset} instead of {offset}")
        part = self._unpack(message.logprobs)
        self._progress.prompt_logprobs += len(part)
        known = len(self._prompt_logprobs)
        fresh = part[max(0, known - offset) :]
        if known > offset and not fresh:
            return None  # received before the resume
        self._prompt_logprobs.extend(fresh)
        return PromptLogprobs(known, fresh)

    def _read_delta(self, message: pb.Delta) -> Event:
        log = self._log(message.choice, "delta")
        expected = len(log.token_ids)
        if message.first_position != expected:
            raise self._breach(
                f"a delta of choice {message.choice} at position {message.first_position} instead of {expected}"
            )
        token_ids = tuple(message.token_ids)
        logprobs = None
        if message.HasField("logprobs"):
            logprobs = self._unpack(message.logprobs)
            if len(logprobs) != len(token_ids):
                raise self._breach(f"log probabilities of {len(logprobs)} tokens with {len(token_ids)} tokens")
            log.logprobs = log.logprobs or []
            log.logprobs.append(message.logprobs.SerializeToString())
        log.texts.append(message.text)
        log.token_ids.extend(token_ids)
        return Delta(message.choice, expected, message.text, token_ids, logprobs, self._read_parts(log, message.parts))

    def _read_parts(self, log: _ChoiceLog, messages: Iterable[part_pb2.Part]) -> tuple[Part, ...]:
        parts = tuple(part for part in map(part_from, messages) if part is not None)
        if not all(map(log.add, parts)):
            raise self._breach("a piece of a tool call that did not begin")
        return parts

    def _read_choice_finished(self, message: pb.ChoiceFinished) -> list[Event]:
        log = self._log(message.choice, "end")
        self._progress.unfinished.remove(message.choice)
        reason = finish_reason_of(message)
        error = failure_of(reason, message)
        if isinstance(error, Unavailable | Overloaded):
            self._progress.not_final = self._progress.not_final or error
            return []  # the resumed choice sends the last parts again
        stop = message.WhichOneof("stop")
        log.finished = Finished(
            message.choice,
            reason,
            getattr(message, stop) if stop else None,
            error,
            message.reasoning_tokens,
            message.beam_score if message.HasField("beam_score") else None,
        )
        if parts := self._read_parts(log, message.parts):
            return [Delta(message.choice, len(log.token_ids), "", (), None, parts), log.finished]
        return [log.finished]

    def _read_request_finished(self, message: pb.RequestFinished) -> None:
        if not self._progress.admitted:
            raise self._breach("the end of a request before admitted")
        if self._progress.unfinished:
            raise self._breach(f"the end of a request before that of its choices {sorted(self._progress.unfinished)}")
        counted, delivered = message.usage.completion_tokens, self._num_tokens(self._progress.choices)
        if counted != delivered:
            raise self._breach(f"{counted} completion tokens counted, {delivered} delivered")
        usage = pb.Usage()
        usage.CopyFrom(message.usage)
        everything = range(len(self._logs))  # this server counted its own choices only
        usage.completion_tokens = self._num_tokens(everything)
        usage.reasoning_tokens += self._reasoning_tokens(set(everything) - self._progress.choices)
        self._usage = usage_from(usage)
        if self._progress.not_final is not None:
            raise self._cut(self._progress.not_final)
        self._note_failure()

    def _note_failure(self) -> None:
        errors = [log.finished.error for log in self._logs if log.finished and log.finished.error]
        if errors:
            self.failure = self._with_partial(errors[0])

    def _refusal(self, message: pb.Refused) -> RingError:
        """The error of a refusal; a breach of protocol once the attempt was admitted."""
        error = from_status(message.status)
        if self._progress.admitted:
            return self._breach(f"a refusal after admitted ({error})")
        return self._with_partial(error)

    def _num_tokens(self, choices: Iterable[int]) -> int:
        return sum(len(self._logs[choice].token_ids) for choice in choices)

    def _reasoning_tokens(self, choices: Iterable[int]) -> int:
        """The sum over the choices that have ended."""
        ends = [self._logs[choice].finished for choice in choices]
        return sum(end.reasoning_tokens for end in ends if end is not None)

    def _log(self, choice: int, what: str) -> _ChoiceLog:
        if not self._progress.admitted:
            raise self._breach(f"a {what} before admitted")
        if choice >= len(self._logs):
            raise self._breach(f"a {what} of choice {choice}, of {len(self._logs)}")
        log = self._logs[choice]
        if choice not in self._progress.unfinished:
            raise self._breach(f"a {what} of choice {choice} after its end")
        return log

    def _choices(self) -> tuple[Choice, ...]:
        parsed = self.admitted_message is not None and self.admitted_message.output.HasField("parse")
        return tuple(
            Choice(
                index,
                "".join(log.texts),
                tuple(log.token_ids),
                log.finished.reason if log.finished else None,
                log.finished.stop if log.finished else None,
                log.token_logprobs,
                "".join(log.contents if parsed else log.texts),
                "".join(log.reasonings) or None,
                log.tool_calls,
                self._read_json,
                log.finished.beam_score if log.finished else None,
            )
            for index, log in enumerate(self._logs)
        )

    def _unpack(self, packed: output_pb2.Logprobs) -> tuple[TokenLogprob, ...]:
        try:
            return logprobs_from(packed)
        except ValueError as error:
            raise self._breach(f"log probabilities that are not aligned ({error})") from None

    def _breach(self, what: str) -> RingError:
        return self._with_partial(ProtocolError(f"the server broke the protocol: {what}"))

    def _with_partial(self, error: RingError) -> RingError:
        if self.admitted is not None:
            error.partial = Partial(self._choices(), self.admitted, self._usage)
        return error


def _agree(first: Message, again: Message) -> bool:
    """Whether the fields set in both are equal: a server of another release may resolve more fields."""
    for known in first.DESCRIPTOR.fields:
        in_both = not known.has_presence or (first.HasField(known.name) and again.HasField(known.name))
        if in_both and getattr(first, known.name) != getattr(again, known.name):
            return False
    return True
