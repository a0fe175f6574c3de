"""One request over as many attempts as it takes: what is sent, what came of it, and what is sent when it was cut.

A request that a server had taken is not begun again. It goes on from the ids that were delivered, at whatever server
takes it: with the prompt's ids, the seed and the options that the first one resolved, so that the tokens are those it
would have had.
"""

from __future__ import annotations

from ringline.delivered import Admitted
from ringline.errors import DeadlineExceeded, RingError, Truncated, Unavailable
from ringline.inference.v1 import inference_pb2 as pb
from ringline.reader import ResponseReader
from ringline.results import Delta, Event, Finished, PromptLogprobs, Resumed
from ringline.retry import Attempts, Deadline


class Course:
    """What is asked, and what of it was delivered so far."""

    def __init__(self, request: pb.GenerateRequest, attempts: Attempts, deadline: Deadline) -> None:
        self.deadline = deadline
        self._request = request
        self._attempts = attempts
        keeps_prompt = attempts.resumable and request.WhichOneof("prompt") != "token_ids"
        hides_prompt = keeps_prompt and not request.output.return_prompt_token_ids
        if keeps_prompt:  # what a text or chat becomes is for the server to say, and a resume needs it
            request.output.return_prompt_token_ids = True
        self.reader = ResponseReader(hides_prompt=hides_prompt)

    def next_request(self) -> pb.GenerateRequest:
        """What to send now. Raise DeadlineExceeded when no time is left."""
        request = self._request if self.reader.admitted is None else self._rest()
        self.reader.begin([resumed.choice for resumed in request.resume.choices])
        milliseconds = self._remaining_ms()
        if milliseconds is not None:
            request.timeout_ms = milliseconds
        return request

    def read(self, response: pb.GenerateResponse) -> Event | None:
        """As ``ResponseReader.read``."""
        event = self.reader.read(response)
        if isinstance(event, Admitted | Resumed):
            self._attempts.admitted()
        elif isinstance(event, Delta | Finished | PromptLogprobs):
            self._attempts.delivered()
        return event

    def delay(self, error: RingError, *, another: bool) -> float:
        """Seconds until the next attempt, after one that ended with ``error``; raise the error where it stands."""
        if error.partial is not None and not (self._attempts.resumable and self._prompt_ids()):
            raise error
        try:
            delay = self._attempts.delay(error, another=another)
        except DeadlineExceeded as passed:
            raise self.reader.ended(passed) from None
        except Unavailable as last:
            cut = self.reader.cut
            if cut is None or last is cut:
                raise
            ended = Truncated(f"{cut}; nor did it go on elsewhere: {last}")
            ended.reason = last.reason
            raise self.reader.ended(ended) from None
        self.reader.begin(())
        return delay

    def _remaining_ms(self) -> int | None:
        try:
            return self.deadline.remaining_ms()
        except DeadlineExceeded as passed:
            raise self.reader.ended(passed) from None

    def _prompt_ids(self) -> list[int]:
        """The prompt as the server took it; empty if it did not say."""
        taken = self.reader.taken
        if taken is None:
            return []
        if self._request.WhichOneof("prompt") == "token_ids":
            return list(self._request.token_ids.ids[-taken.prompt_tokens :])  # truncated, if that was asked
        return list(taken.prompt_token_ids)

    def _rest(self) -> pb.GenerateRequest:
        """The request that goes on from what was delivered."""
        taken = self.reader.taken
        assert taken is not None
        rest = pb.GenerateRequest(
            request_id=self._request.request_id,
            model=taken.model,
            sampling=taken.sampling,
            stopping=taken.stopping,
            output=taken.output,
            cache_salt=self._request.cache_salt,
            traceparent=self._request.traceparent,
            resume=self.reader.resume(),
            requires=self._request.requires,
        )
        rest.token_ids.ids.extend(self._prompt_ids())
        rest.output.return_prompt_token_ids = False
        if self._request.HasField("priority"):
            rest.priority = self._request.priority
        if self.reader.has_prompt_logprobs:
            rest.output.ClearField("prompt_logprobs")
        return rest
