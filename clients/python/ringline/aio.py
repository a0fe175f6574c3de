"""The asyncio client: every request of a client shares one long-lived Session stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

import grpc

from ringline.channel import CHANNEL_OPTIONS, metadata_pairs
from ringline.errors import from_rpc
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1.inference_pb2_grpc import InferenceServiceStub
from ringline.link import SessionCall
from ringline.options import Message, Options, TokenizeOptions
from ringline.request import build_detokenize, build_tokenize
from ringline.results import Generation, Model, Tokenization, models_from, tokenization_from
from ringline.retry import Backoff, Deadline
from ringline.session import AsyncStream, Session

if TYPE_CHECKING:  # the stub is one class at run time
    from ringline.inference.v1.inference_pb2_grpc import InferenceServiceAsyncStub

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class AsyncClient:
    """As ``Client``, for asyncio. Connects at first use, and belongs to the event loop of that use.

    Thousands of concurrent requests are cheap: they share one stream, on which the server batches what is new of all
    of them. That stream is reopened by itself.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retries: int = 2,
        retry_overloaded: bool = False,
    ) -> None:
        """As ``Client``."""
        self._address = address
        self._credentials = credentials
        self._metadata = metadata_pairs(metadata)
        self._timeout = timeout
        self._retries = retries
        self._retry_overloaded = retry_overloaded
        self._channel: grpc.aio.Channel | None = None
        self._session = self.session()

    def session(self) -> Session:
        """A Session of its own beside the client's: one stream, which need not wait for the other's messages."""
        return Session(
            self._open_session,
            timeout=self._timeout,
            retries=self._retries,
            retry_overloaded=self._retry_overloaded,
        )

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """As ``Client.generate``."""
        return await self._session.generate(prompt, messages=messages, token_ids=token_ids, **options)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """As ``Client.stream``."""
        return self._session.stream(prompt, messages=messages, token_ids=token_ids, **options)

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[TokenizeOptions],
    ) -> Tokenization:
        """As ``Client.tokenize``."""
        timeout = options.pop("timeout", self._timeout)
        request = build_tokenize(text, messages, options)
        return tokenization_from(await self._call(self._stub().Tokenize, request, timeout))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        skip_special_tokens: bool | None = None,
    ) -> str:
        """As ``Client.detokenize``."""
        request = build_detokenize(token_ids, model, skip_special_tokens)
        return (await self._call(self._stub().Detokenize, request, self._timeout)).text

    async def models(self) -> tuple[Model, ...]:
        """As ``Client.models``."""
        return models_from(await self._call(self._stub().ListModels, pb.ListModelsRequest(), self._timeout))

    async def close(self) -> None:
        """End every request that is under way and the connection."""
        await self._session.close()
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _open_session(self) -> SessionCall:
        return self._stub().Session(metadata=self._metadata)

    async def _call(
        self, method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response], request: _Request, seconds: float | None
    ) -> _Response:
        deadline = Deadline(seconds)
        backoff = Backoff(self._retries, self._retry_overloaded, deadline)
        while True:
            try:
                return await method(request, timeout=deadline.remaining(), metadata=self._metadata)
            except grpc.RpcError as failure:
                await asyncio.sleep(backoff.delay(from_rpc(failure)))

    def _stub(self) -> InferenceServiceAsyncStub:
        if self._channel is None:  # made here, because it belongs to the running event loop
            self._channel = (
                grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
                if self._credentials is None
                else grpc.aio.secure_channel(self._address, self._credentials, options=CHANNEL_OPTIONS)
            )
            self._stubs = cast("InferenceServiceAsyncStub", InferenceServiceStub(self._channel))
        return self._stubs
