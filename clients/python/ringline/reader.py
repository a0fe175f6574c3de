"""Reads the responses of one request: checks the protocol, turns messages into events, and keeps what was delivered.

What was delivered outlives an attempt: a request that was cut goes on where it was, and the reader reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import Message

from ringline.delivered import Admitted, Choice, Partial, TokenLogprob, Usage
from ringline.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    PermissionDenied,
    ProtocolError,
    RingError,
    Truncated,
    Unavailable,
    from_status,
)
from ringline.inference.v1 import inference_pb2 as pb
from ringline.results import (
    Delta,
    Event,
    Finished,
    Generation,
    Prefill,
    PromptLogprobs,
    Resumed,
    Started,
    admitted_from,
    failure_of,
    finish_reason_of,
    logprobs_from,
    usage_from,
)
from ringline.types.v1 import output_pb2, sampling_pb2

_FINAL = (Cancelled, DeadlineExceeded, InvalidRequest, PermissionDenied, ProtocolError)
"""Ends of a stream that say why; any other is a connection or a server that was lost."""


@dataclass(slots=True)
class _Log:
    """What was delivered of one choice."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finished: Finished | None = None


@dataclass(slots=True)
class _Attempt:
    """What one server said."""

    admitted: bool = False
    choices: set[int] = field(default_factory=set)
    """That it is to go on with."""
    unfinished: set[int] = field(default_factory=set)
    """Of these, which have not ended."""
    prompt_scores: int = 0
    """Log probabilities of the prompt that came."""
    unavailable: RingError | None = None
    """With what choices ended that may go on elsewhere."""


class ResponseReader:
    """The life of a request: Admitted, deltas, the end of each choice, the end of the request; or one refusal.

    Of a later attempt the same, for the choices that had not ended. An event that is unknown here is passed over.
    """

    def __init__(self, *, hides_prompt: bool = False) -> None:
        """``hides_prompt``: who asked does not want the prompt's ids, and is not told."""
        self.admitted: Admitted | None = None
        self.taken: pb.Admitted | None = None
        """The same as the server said it."""
        self.failure: RingError | None = None
        """What a choice failed with; known when ``done``."""
        self.resumed = 0
        """How often the request went on after it was cut."""
        self.cut: RingError | None = None
        """What ended the last attempt that a server had taken."""
        self._hides_prompt = hides_prompt
        self._logs: list[_Log] = []
        self._usage: Usage | None = None
        self._cached_tokens = 0
        """As a Prefill said it."""
        self._started: pb.Started | None = None
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._attempt = _Attempt()

    @property
    def done(self) -> bool:
        """Whether the request has ended, and so every choice."""
        return self._usage is not None

    @property
    def has_prompt_logprobs(self) -> bool:
        """Whether all of them came that were asked for."""
        return len(self._prompt_logprobs or ()) >= (self.admitted.prompt_tokens - 1 if self.admitted else 0)

    def resume(self) -> pb.Resume:
        """The choices that have not ended, with the ids that were delivered, and what computed them."""
        choices = [
            sampling_pb2.ResumedChoice(choice=choice, token_ids=log.token_ids)
            for choice, log in enumerate(self._logs)
            if log.finished is None
        ]
        admitted, started = self.taken or pb.Admitted(), self._started or pb.Started()
        model_digest = started.model_digest or admitted.model_digest
        return pb.Resume(choices=choices, model_digest=model_digest, numerics=started.numerics)

    def begin(self, choices: Sequence[int]) -> None:
        """Another attempt, at ``choices``; none at the first, which has all."""
        self._attempt = _Attempt(choices=set(choices), unfinished=set(choices))
        self._usage = None

    def read(self, response: pb.GenerateResponse) -> Event | None:
        """The event in a response, if it is one to tell.

        Raise what a refusal says, what may go on elsewhere ended with, and ProtocolError for what the contract forbids.
        """
        kind = response.WhichOneof("event")
        if kind == "delta":
            return self._read_delta(response.delta)
        if kind == "choice_finished":
            return self._read_choice_finished(response.choice_finished)
        if kind == "request_finished":
            self._read_request_finished(response.request_finished)
            return None
        if kind == "admitted":
            return self._read_admitted(response.admitted)
        if kind == "refused":
            raise self._refusal(response.refused)
        if kind is None:
            return None  # of a later version of the contract
        if not self._attempt.admitted or self.done:
            raise self._breach(f"{kind} outside of a request's life")
        if kind == "prefill":
            self._cached_tokens = response.prefill.cached_tokens
            return Prefill(response.prefill.computed_tokens, response.prefill.cached_tokens)
        if kind == "prompt_logprobs":
            return self._read_prompt_logprobs(response.prompt_logprobs)
        started = self._started = response.started
        return Started(started.model_digest, started.numerics, started.identical, started.reason)

    def generation(self) -> Generation:
        """The whole answer; raise ``failure`` if a choice failed."""
        assert self.done, "the request has not ended"
        if self.failure is not None:
            raise self.failure
        assert self.admitted is not None
        assert self._usage is not None
        prompt_logprobs = None if self._prompt_logprobs is None else tuple(self._prompt_logprobs)
        return Generation(self._choices(), self._usage, self.admitted, prompt_logprobs, self.resumed)

    def lost(self, cause: RingError) -> RingError | None:
        """The error of a stream that was lost; None where only the end of the request was, so it is done now."""
        if isinstance(cause, _FINAL) or not self._logs or any(log.finished is None for log in self._logs):
            return self.ended(cause)
        assert self.admitted is not None
        tokens = self._num_tokens(range(len(self._logs)))
        self._usage = Usage(self.admitted.prompt_tokens, self._cached_tokens, tokens)
        self._note_failure()
        return None

    def ended(self, cause: RingError) -> RingError:
        """The error of a stream that ended before the request did, ``cause`` being what is known of it."""
        if isinstance(cause, _FINAL) or not self._attempt.admitted:
            return self._with_partial(cause)
        return self._cut(Truncated(f"the stream ended before the request did: {cause}"))

    def _cut(self, error: RingError) -> RingError:
        self.cut = error
        return self._with_partial(error)

    def _read_admitted(self, message: pb.Admitted) -> Event:
        if self._attempt.admitted:
            raise self._breach("a second admitted")
        self._attempt.admitted = True
        if self.taken is not None:
            return self._read_resumed(self.taken, message)
        self.taken = message
        n = max(1, message.sampling.n)
        self._attempt.choices, self._attempt.unfinished = set(range(n)), set(range(n))
        self._logs = [_Log() for _ in range(n)]
        if message.output.HasField("prompt_logprobs"):
            self._prompt_logprobs = []
        told = message
        if self._hides_prompt:
            told = pb.Admitted()
            told.CopyFrom(message)
            told.ClearField("prompt_token_ids")
            told.output.return_prompt_token_ids = False
        self.admitted = admitted_from(told)
        return self.admitted

    def _read_resumed(self, first: pb.Admitted, message: pb.Admitted) -> Event:
        agreed = {
            "prompt_tokens": message.prompt_tokens == first.prompt_tokens,
            "sampling": _agree(first.sampling, message.sampling),
            "stopping": _agree(first.stopping, message.stopping),
        }
        if others := [name for name, same in agreed.items() if not same]:
            raise self._breach(f"a request that goes on with another {others[0]}")
        self.resumed += 1
        return Resumed(str(self.cut))

    def _read_prompt_logprobs(self, message: pb.PromptLogprobs) -> Event | None:
        if self._prompt_logprobs is None:
            self._prompt_logprobs = []
        offset = self._attempt.prompt_scores
        if message.offset != offset:
            raise self._breach(f"prompt log probabilities from {message.offset} instead of {offset}")
        part = self._unpack(message.logprobs)
        self._attempt.prompt_scores += len(part)
        known = len(self._prompt_logprobs)
        fresh = part[max(0, known - offset) :]
        if known > offset and not fresh:
            return None  # came before the request was cut
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
            log.logprobs.extend(logprobs)
        log.texts.append(message.text)
        log.token_ids.extend(token_ids)
        return Delta(message.choice, expected, message.text, token_ids, logprobs)

    def _read_choice_finished(self, message: pb.ChoiceFinished) -> Event | None:
        log = self._log(message.choice, "end")
        self._attempt.unfinished.remove(message.choice)
        reason = finish_reason_of(message)
        error = failure_of(reason, message)
        if isinstance(error, Unavailable):  # not its end, if it can go on elsewhere
            self._attempt.unavailable = self._attempt.unavailable or error
            return None
        stop = message.WhichOneof("stop")
        log.finished = Finished(message.choice, reason, getattr(message, stop) if stop else None, error)
        return log.finished

    def _read_request_finished(self, message: pb.RequestFinished) -> None:
        if not self._attempt.admitted:
            raise self._breach("the end of a request before admitted")
        if self._attempt.unfinished:
            raise self._breach(f"the end of a request before that of its choices {sorted(self._attempt.unfinished)}")
        counted, delivered = message.usage.completion_tokens, self._num_tokens(self._attempt.choices)
        if counted != delivered:
            raise self._breach(f"{counted} completion tokens counted, {delivered} delivered")
        usage = pb.Usage()
        usage.CopyFrom(message.usage)
        usage.completion_tokens = self._num_tokens(range(len(self._logs)))  # with choices that had ended before a cut
        self._usage = usage_from(usage)
        if self._attempt.unavailable is not None:
            raise self._cut(self._attempt.unavailable)
        self._note_failure()

    def _note_failure(self) -> None:
        errors = [log.finished.error for log in self._logs if log.finished and log.finished.error]
        if errors:
            self.failure = self._with_partial(errors[0])

    def _refusal(self, message: pb.Refused) -> RingError:
        """The error of a refusal, which only a request that was not admitted may get."""
        error = from_status(message.status)
        return (
            self._breach(f"a refusal after admitted ({error})") if self._attempt.admitted else self._with_partial(error)
        )

    def _num_tokens(self, choices: Iterable[int]) -> int:
        return sum(len(self._logs[choice].token_ids) for choice in choices)

    def _log(self, choice: int, what: str) -> _Log:
        if not self._attempt.admitted:
            raise self._breach(f"a {what} before admitted")
        if choice >= len(self._logs):
            raise self._breach(f"a {what} of choice {choice}, of {len(self._logs)}")
        log = self._logs[choice]
        if choice not in self._attempt.unfinished:
            raise self._breach(f"a {what} of choice {choice} after its end")
        return log

    def _choices(self) -> tuple[Choice, ...]:
        return tuple(
            Choice(
                index,
                "".join(log.texts),
                tuple(log.token_ids),
                log.finished.reason if log.finished else None,
                log.finished.stop if log.finished else None,
                None if log.logprobs is None else tuple(log.logprobs),
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
    """Whether both say the same, as far as both say it: a server of another release may resolve other fields too."""
    for known in first.DESCRIPTOR.fields:
        told = not known.has_presence or (first.HasField(known.name) and again.HasField(known.name))
        if told and getattr(first, known.name) != getattr(again, known.name):
            return False
    return True
