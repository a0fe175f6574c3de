"""Reads the responses of one request: checks the protocol, turns messages into events, and keeps what was delivered.

What was delivered outlives an attempt: a request that was cut goes on where it was, and the reader reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ringline.delivered import Admitted, Choice, FinishReason, Partial, TokenLogprob, Usage
from ringline.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    PermissionDenied,
    ProtocolError,
    RingError,
    Truncated,
    Unavailable,
)
from ringline.inference.v1 import inference_pb2 as pb
from ringline.results import (
    FINISH_REASONS,
    Continued,
    Delta,
    Event,
    Finished,
    Generation,
    Prefill,
    PromptLogprobs,
    Resumed,
    admitted_from,
    failure_of,
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
    """Of these, which had no terminal."""
    prompt_scores: int = 0
    """Log probabilities of the prompt that came."""
    unavailable: RingError | None = None
    """With what choices ended that may go on elsewhere."""


class ResponseReader:
    """The life of a request: Admitted, deltas, one terminal per choice; or one refusal.

    Of a later attempt the same, for the choices that had no terminal.
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
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._attempt = _Attempt()

    @property
    def done(self) -> bool:
        """Whether every choice had its terminal."""
        return self.admitted is not None and all(log.finished for log in self._logs)

    @property
    def has_prompt_logprobs(self) -> bool:
        """Whether all of them came that were asked for."""
        return len(self._prompt_logprobs or ()) >= (self.admitted.prompt_tokens - 1 if self.admitted else 0)

    def unfinished(self) -> list[sampling_pb2.ResumedChoice]:
        """The choices that had no terminal, with the ids that were delivered."""
        return [
            sampling_pb2.ResumedChoice(choice=choice, token_ids=log.token_ids)
            for choice, log in enumerate(self._logs)
            if log.finished is None
        ]

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
        if kind == "terminal":
            return self._read_terminal(response.terminal)
        if kind == "admitted":
            return self._read_admitted(response.admitted)
        if not self._attempt.admitted or self.done:
            raise self._breach(f"{kind} outside of a request's life")
        if kind == "prefill":
            return Prefill(response.prefill.computed_tokens, response.prefill.cached_tokens)
        if kind == "prompt_logprobs":
            return self._read_prompt_logprobs(response)
        if kind == "continued":
            return Continued(response.continued.reason, response.continued.identical)
        raise self._breach("a response without a known event")

    def generation(self) -> Generation:
        """The whole answer; raise ``failure`` if a choice failed."""
        assert self.done, "the request has not ended"
        if self.failure is not None:
            raise self.failure
        assert self.admitted is not None
        assert self._usage is not None
        prompt_logprobs = None if self._prompt_logprobs is None else tuple(self._prompt_logprobs)
        return Generation(self._choices(), self._usage, self.admitted, prompt_logprobs, self.resumed)

    def ended(self, cause: RingError) -> RingError:
        """The error of a stream that ended before the request did, ``cause`` being what is known of it."""
        if isinstance(cause, _FINAL) or not self._attempt.admitted:
            return self._with_partial(cause)
        return self._lost(Truncated(f"the stream ended before the request did: {cause}"))

    def _lost(self, error: RingError) -> RingError:
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
        for name in ("prompt_tokens", "sampling", "stopping"):
            if getattr(message, name) != getattr(first, name):
                raise self._breach(f"a request that goes on with another {name}")
        self.resumed += 1
        return Resumed(str(self.cut))

    def _read_prompt_logprobs(self, response: pb.GenerateResponse) -> Event | None:
        if self._prompt_logprobs is None:
            self._prompt_logprobs = []
        offset = self._attempt.prompt_scores
        if response.prompt_logprobs_offset != offset:
            raise self._breach(f"prompt log probabilities from {response.prompt_logprobs_offset} instead of {offset}")
        part = self._unpack(response.prompt_logprobs)
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

    def _read_terminal(self, message: pb.Terminal) -> Event | None:
        reason = FINISH_REASONS.get(message.cause)
        if reason is None:
            raise self._breach(f"a terminal with cause {message.cause}")
        error = failure_of(reason, message)
        if not message.HasField("choice"):
            raise self._refusal(reason, error)
        log = self._log(message.choice, "terminal")
        self._attempt.unfinished.remove(message.choice)
        finished = None
        if isinstance(error, Unavailable):  # not its end, if it can go on elsewhere
            self._attempt.unavailable = self._attempt.unavailable or error
        else:
            stop = message.WhichOneof("stop")
            finished = Finished(message.choice, reason, getattr(message, stop) if stop else None, error)
            log.finished = finished
        if not self._attempt.unfinished:
            self._finish(message)
        return finished

    def _refusal(self, reason: FinishReason, error: RingError | None) -> RingError:
        """The error of a terminal without a choice, which only a request that has none may get."""
        if self._attempt.admitted:
            return self._breach(f"a terminal without a choice after admitted ({error or reason})")
        return self._with_partial(error) if error else self._breach(f"a refusal with cause {reason}")

    def _finish(self, last: pb.Terminal) -> None:
        if not last.HasField("usage"):
            raise self._breach("no usage on the last terminal")
        counted, delivered = last.usage.completion_tokens, self._num_tokens(self._attempt.choices)
        if counted != delivered:
            raise self._breach(f"{counted} completion tokens counted, {delivered} delivered")
        usage = pb.Usage()
        usage.CopyFrom(last.usage)
        usage.completion_tokens = self._num_tokens(range(len(self._logs)))  # with choices that had ended before a cut
        self._usage = usage_from(usage)
        if self._attempt.unavailable is not None:
            raise self._lost(self._attempt.unavailable)
        errors = [log.finished.error for log in self._logs if log.finished and log.finished.error]
        if errors:
            self.failure = self._with_partial(errors[0])

    def _num_tokens(self, choices: Iterable[int]) -> int:
        return sum(len(self._logs[choice].token_ids) for choice in choices)

    def _log(self, choice: int, what: str) -> _Log:
        if not self._attempt.admitted:
            raise self._breach(f"a {what} before admitted")
        if choice >= len(self._logs):
            raise self._breach(f"a {what} of choice {choice}, of {len(self._logs)}")
        log = self._logs[choice]
        if choice not in self._attempt.unfinished:
            raise self._breach(f"a {what} of choice {choice} after its terminal")
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
