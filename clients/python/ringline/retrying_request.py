"""One request over several attempts: the first request sent, what was delivered, and the request after a lost stream.

An admitted request is never started over but resumed: any server continues it from the delivered ids, with the prompt
ids, the seed and the options that the first server resolved, so the tokens are the same as without the interruption. A
chat with pictures is sent again in place of prompt ids, with the digests of its pictures and of its prompt.
``retry`` decides whether and when, ``response_reader`` keeps what was delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ringline.content_parts import has_pictures
from ringline.errors import DeadlineExceeded, RingError, Truncated, Unavailable
from ringline.inference.v1 import inference_pb2 as pb
from ringline.outputs import Admitted
from ringline.request import needed
from ringline.response_reader import ResponseReader
from ringline.results import Delta, Event, Finished, PromptLogprobs, Resumed
from ringline.retry import ADAPTER_GONE, Deadline, RetryState
from ringline.server_pool import Server, ServerPool


class RetryingRequest:
    """A request, its delivered part, and its next attempt."""

    def __init__(
        self,
        request: pb.GenerateRequest,
        retry_state: RetryState,
        deadline: Deadline,
        read_json: Callable[[str], Any] | None = None,
    ) -> None:
        """``read_json``: see ``ResponseReader``."""
        self.deadline = deadline
        self._began: float | None = None
        """When the first attempt began, on the monotonic clock; perhaps long after this object was made."""
        self._request = request
        self._retry_state = retry_state
        self.has_pictures = has_pictures(request.chat)
        is_text = request.WhichOneof("prompt") != "token_ids" and not self.has_pictures
        keeps_prompt = retry_state.resumable and is_text
        hides_prompt = keeps_prompt and not request.output.return_prompt_token_ids
        if keeps_prompt:  # a resume needs the token ids of a text or chat
            request.output.return_prompt_token_ids = True
        self.reader = ResponseReader(hides_prompt=hides_prompt, read_json=read_json)
        self._any_adapter = False
        """Whether the next attempt takes what its adapter's name stands for by then: the first one is gone."""
        self.avoid: Server[Any] | None = None
        """A server that had no engine for the request: the next attempt goes elsewhere if possible."""

    def next_request(self) -> pb.GenerateRequest:
        """The message that the next attempt sends. Raises DeadlineExceeded when no time is left."""
        if self._began is None:
            self._began = time.monotonic()
        request = self._request if self.reader.admitted is None else self._resumed_request()
        self.reader.begin([resumed.choice for resumed in request.resume.choices])
        milliseconds = self._remaining_ms()
        if milliseconds is not None:
            request.timeout_ms = milliseconds
        return request

    def read(self, response: pb.GenerateResponse) -> list[Event]:
        """Like ``ResponseReader.read``; also tells the retry state of progress."""
        events = self.reader.read(response)
        for event in events:
            if isinstance(event, Admitted | Resumed):
                self._retry_state.admitted()
            elif isinstance(event, Delta | Finished | PromptLogprobs):
                self._retry_state.delivered()
        return events

    def failed_at(self, server: Server[Any], pool: ServerPool[Any], error: RingError) -> RingError:
        """An attempt ended with ``error``: eject a server that is lost or takes no requests.

        A server that ends an admitted request as Unavailable has no engine for it: only this request avoids the server.
        Returns the error to raise if the request is not retried.
        """
        if isinstance(error, Unavailable) and self.reader.done:
            self.avoid = server
            return error
        return pool.attempt_failed(server, error, self._began or 0.0)

    def delay(self, error: RingError, *, any_available: bool) -> float:
        """Seconds to wait after an attempt that ended with ``error``; raises the error if there is no next attempt.

        ``any_available``: whether some server is not ejected, so that it can be tried at once.
        """
        has_prompt = self.has_pictures or self._prompt_ids()
        if error.partial is not None and not (self._retry_state.resumable and has_prompt):
            raise error
        anew = error.reason == ADAPTER_GONE and not self.reader.has_output
        self._any_adapter = self._any_adapter or anew
        try:
            delay = self._retry_state.delay(error, any_available=any_available, begins_anew=anew)
        except DeadlineExceeded as passed:
            raise self.reader.ended(passed) from None
        except Unavailable as last:
            cut = self.reader.cut
            if cut is None or last is cut:
                raise
            ended = Truncated(f"{cut}; it could not be resumed: {last}")
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
        """The prompt's ids as the server admitted them; empty if it did not return them."""
        admitted = self.reader.admitted_message
        if admitted is None:
            return []
        if self._request.WhichOneof("prompt") == "token_ids":
            return list(self._request.token_ids.ids[-admitted.prompt_tokens :])  # truncate_prompt_tokens may shorten it
        return list(admitted.prompt_token_ids)

    def _resumed_request(self) -> pb.GenerateRequest:
        """The request that continues after the delivered part."""
        admitted = self.reader.admitted_message
        assert admitted is not None
        request = pb.GenerateRequest(
            request_id=self._request.request_id,
            model=admitted.model,
            adapter=admitted.adapter.name,
            sampling=admitted.sampling,
            stopping=admitted.stopping,
            output=admitted.output,
            cache_salt=self._request.cache_salt,
            traceparent=self._request.traceparent,
            resume=self.reader.resume(),
            requires=self._request.requires,
            beam_search=self._request.beam_search if self._request.HasField("beam_search") else None,
            speculation=self._request.speculation if self._request.HasField("speculation") else None,
        )
        if self._any_adapter and not self.reader.has_output:
            request.resume.adapter_digest = ""
        if admitted.HasField("constraint"):  # includes what tools and tool_choice demanded
            request.constraint.CopyFrom(admitted.constraint)
        if admitted.output.HasField("parse") and not admitted.stopping.HasField("stop_in_reasoning"):
            request.stopping.stop_in_reasoning = True  # a server that does not know the field applies stops everywhere
        request.requires.extend(name for name in needed(request) if name not in request.requires)
        if self.has_pictures:  # they are prepared anew, and compared
            request.chat.CopyFrom(self._request.chat)
            if self._request.HasField("add_special_tokens"):
                request.add_special_tokens = self._request.add_special_tokens
            request.resume.media_digests.extend(admitted.media_digests)
            request.resume.prompt_digest = admitted.prompt_digest
        else:
            request.token_ids.ids.extend(self._prompt_ids())
        request.output.return_prompt_token_ids = False
        if self._request.HasField("priority"):
            request.priority = self._request.priority
        if self.reader.has_prompt_logprobs:
            request.output.ClearField("prompt_logprobs")
        return request
