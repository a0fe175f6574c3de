"""Relays protobuf requests and responses, with the library's retries and resumes: for gateways and proxies."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator

from ringline.aio import AsyncClient
from ringline.aio_stream import AsyncStream
from ringline.errors import RingError, invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.outputs import Usage
from ringline.results import Event, PromptLogprobs, Resumed
from ringline.retry import Deadline, RetryState
from ringline.retrying_request import RetryingRequest


class Relay:
    """Passes requests on through a client. ``seconds``: the caller's timeout; None: no limit."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def generate(
        self, request: pb.GenerateRequest, seconds: float | None = None
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """The responses as from one server that never fails: each event once, across servers and retries.

        A failed choice is an event, not an error. Raises RingError if the request was not admitted or could not be
        completed. ``request`` must not have the id of another live request.
        """
        if request.HasField("resume"):
            raise invalid("resume", "expected none: requests are resumed on the way to the processor")
        given = [] if seconds is None else [seconds]
        if request.HasField("timeout_ms"):
            given.append(request.timeout_ms / 1000)
        deadline = Deadline(min(given, default=None))
        retrying = _RelayedRequest(request, RetryState(self._client._policy, deadline), deadline)
        pool, responses = self._client._pool, retrying.responses
        stream = AsyncStream(self._client._session._begin, lambda: pool().any_available_but(retrying.avoid), retrying)
        async with stream:
            try:
                async for _ in stream.events():
                    while responses:
                        yield responses.popleft()
            except RingError:
                if stream.usage is None:
                    raise
            while responses:
                yield responses.popleft()
        if (usage := stream.usage) is not None:
            finished = pb.RequestFinished(usage=_usage_message(usage))
            yield pb.GenerateResponse(request_id=request.request_id, request_finished=finished)

    async def embed(self, request: pb.EmbedRequest, seconds: float | None = None) -> pb.EmbedResponse:
        """Raises RingError, like the methods below."""
        return await self._client._call(lambda to: to.stub.Embed, request, seconds)

    async def score(self, request: pb.ScoreRequest, seconds: float | None = None) -> pb.ScoreResponse:
        return await self._client._call(lambda to: to.stub.Score, request, seconds)

    async def classify(self, request: pb.ClassifyRequest, seconds: float | None = None) -> pb.ClassifyResponse:
        return await self._client._call(lambda to: to.stub.Classify, request, seconds)

    async def tokenize(self, request: pb.TokenizeRequest, seconds: float | None = None) -> pb.TokenizeResponse:
        return await self._client._tokenize(request, seconds)

    async def detokenize(self, request: pb.DetokenizeRequest, seconds: float | None = None) -> pb.DetokenizeResponse:
        return await self._client._call(lambda to: to.stub.Detokenize, request, seconds)

    async def list_models(self, request: pb.ListModelsRequest, seconds: float | None = None) -> pb.ListModelsResponse:
        return await self._client._call(lambda to: to.stub.ListModels, request, seconds)

    async def load_adapter(
        self, request: pb.LoadAdapterRequest, seconds: float | None = None
    ) -> pb.LoadAdapterResponse:
        return await self._client._call(lambda to: to.stub.LoadAdapter, request, seconds)

    async def unload_adapter(
        self, request: pb.UnloadAdapterRequest, seconds: float | None = None
    ) -> pb.UnloadAdapterResponse:
        return await self._client._call(lambda to: to.stub.UnloadAdapter, request, seconds)

    async def list_adapters(
        self, request: pb.ListAdaptersRequest, seconds: float | None = None
    ) -> pb.ListAdaptersResponse:
        return await self._client._call(lambda to: to.stub.ListAdapters, request, seconds)


class _RelayedRequest(RetryingRequest):
    """Keeps the messages for the caller, except RequestFinished: ``generate`` makes it from the total usage."""

    def __init__(self, request: pb.GenerateRequest, retry_state: RetryState, deadline: Deadline) -> None:
        self._returns_prompt = request.output.return_prompt_token_ids
        super().__init__(request, retry_state, deadline)
        self.responses: deque[pb.GenerateResponse] = deque()

    def read(self, response: pb.GenerateResponse) -> list[Event]:
        events = super().read(response)
        if events and (visible := self._visible(events[0], response)) is not None:
            self.responses.append(visible)
        return events

    def _visible(self, event: Event, response: pb.GenerateResponse) -> pb.GenerateResponse | None:
        if isinstance(event, Resumed):
            return None
        if response.HasField("admitted") and not self._returns_prompt and response.admitted.prompt_token_ids:
            hidden = pb.GenerateResponse()  # a copy: the reader needs the original's ids for a resume
            hidden.CopyFrom(response)
            hidden.admitted.ClearField("prompt_token_ids")
            hidden.admitted.output.return_prompt_token_ids = False
            return hidden
        if isinstance(event, PromptLogprobs) and event.offset != response.prompt_logprobs.offset:
            known, packed = event.offset - response.prompt_logprobs.offset, response.prompt_logprobs.logprobs
            response.prompt_logprobs.offset = event.offset
            del packed.logprobs[:known], packed.ranks[:known]
            del packed.top_ids[: known * packed.top_count], packed.top_logprobs[: known * packed.top_count]
        return response


def _usage_message(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        media_tokens=usage.media_tokens,
    )
