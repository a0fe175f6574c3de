"""Reads the responses of one request: checks the protocol, turns messages into events, and keeps what was delivered."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringline.delivered import Admitted, Choice, FinishReason, Partial, TokenLogprob, Usage
from ringline.errors import Cancelled, DeadlineExceeded, ProtocolError, RingError, ServerError, Truncated, from_status
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
    admitted_from,
    logprobs_from,
    usage_from,
)
from ringline.types.v1 import output_pb2


@dataclass(slots=True)
class _Log:
    """What was delivered of one choice."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finished: Finished | None = None


class ResponseReader:
    """The life of one attempt at a request: Admitted, deltas, one terminal per choice; or one refusal."""

    def __init__(self) -> None:
        self.admitted: Admitted | None = None
        self.failure: RingError | None = None
        """What a choice failed with; known when ``done``."""
        self._logs: list[_Log] = []
        self._unfinished = 0
        self._usage: Usage | None = None
        self._prompt_logprobs: list[TokenLogprob] | None = None

    @property
    def done(self) -> bool:
        """Whether every choice had its terminal."""
        return self.admitted is not None and self._unfinished == 0

    def read(self, response: pb.GenerateResponse) -> Event:
        """The event in a response. Raise what a refusal says, and ProtocolError for what the contract forbids."""
        kind = response.WhichOneof("event")
        if kind == "delta":
            return self._read_delta(response.delta)
        if kind == "terminal":
            return self._read_terminal(response.terminal)
        if kind == "admitted":
            return self._read_admitted(response.admitted)
        if self.admitted is None or self.done:
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
        return Generation(self._choices(), self._usage, self.admitted, prompt_logprobs)

    def ended(self, cause: RingError) -> RingError:
        """The error of a stream that ended before the request did, ``cause`` being what is known of it."""
        if self.admitted is None:
            return cause
        if isinstance(cause, Cancelled | DeadlineExceeded | ProtocolError):
            return self._with_partial(cause)
        return self._with_partial(Truncated(f"the stream ended before the request did: {cause}"))

    def _read_admitted(self, message: pb.Admitted) -> Event:
        if self.admitted is not None:
            raise self._breach("a second admitted")
        self.admitted = admitted_from(message)
        if message.output.HasField("prompt_logprobs"):
            self._prompt_logprobs = []
        n = max(1, message.sampling.n)
        self._logs = [_Log() for _ in range(n)]
        self._unfinished = n
        return self.admitted

    def _read_prompt_logprobs(self, response: pb.GenerateResponse) -> Event:
        if self._prompt_logprobs is None:
            self._prompt_logprobs = []
        offset = len(self._prompt_logprobs)
        if response.prompt_logprobs_offset != offset:
            raise self._breach(f"prompt log probabilities from {response.prompt_logprobs_offset} instead of {offset}")
        part = self._unpack(response.prompt_logprobs)
        self._prompt_logprobs.extend(part)
        return PromptLogprobs(offset, part)

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

    def _read_terminal(self, message: pb.Terminal) -> Event:
        reason = FINISH_REASONS.get(message.cause)
        if reason is None:
            raise self._breach(f"a terminal with cause {message.cause}")
        if not message.HasField("choice"):
            raise self._refusal(reason, message)
        log = self._log(message.choice, "terminal")
        stop = message.WhichOneof("stop")
        log.finished = Finished(
            message.choice, reason, getattr(message, stop) if stop else None, _failure(reason, message)
        )
        self._unfinished -= 1
        if self._unfinished == 0:
            self._finish(message)
        return log.finished

    def _refusal(self, reason: FinishReason, message: pb.Terminal) -> RingError:
        """The error of a terminal without a choice, which only a request that has none may get."""
        error = _failure(reason, message)
        if self.admitted is not None:
            return self._breach(f"a terminal without a choice after admitted ({error or reason})")
        return error or self._breach(f"a refusal with cause {reason}")

    def _finish(self, last: pb.Terminal) -> None:
        if not last.HasField("usage"):
            raise self._breach("no usage on the last terminal")
        self._usage = usage_from(last.usage)
        delivered = sum(len(log.token_ids) for log in self._logs)
        if self._usage.completion_tokens != delivered:
            raise self._breach(f"{self._usage.completion_tokens} completion tokens counted, {delivered} delivered")
        errors = [log.finished.error for log in self._logs if log.finished and log.finished.error]
        if errors:
            self.failure = self._with_partial(errors[0])

    def _log(self, choice: int, what: str) -> _Log:
        if self.admitted is None:
            raise self._breach(f"a {what} before admitted")
        if choice >= len(self._logs):
            raise self._breach(f"a {what} of choice {choice}, of {len(self._logs)}")
        log = self._logs[choice]
        if log.finished is not None:
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


def _failure(reason: FinishReason, message: pb.Terminal) -> RingError | None:
    """The error that a terminal means to who waits for the answer."""
    if reason is FinishReason.CANCELLED:
        return Cancelled("the request was cancelled")
    if reason is FinishReason.DEADLINE:
        return DeadlineExceeded("the request's timeout passed")
    if reason is FinishReason.ERROR:
        return from_status(message.error) if message.HasField("error") else ServerError("the request failed")
    return None
