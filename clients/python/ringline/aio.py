"""The asyncio client: a client's requests share one long-lived Session stream."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, Unpack, cast

import grpc

from ringline.aio_stream import AsyncStream
from ringline.content_parts import has_pictures
from ringline.environment import find_target
from ringline.errors import Cancelled, RingError, from_lost_call
from ringline.in_order import all_in_order
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1.inference_pb2_grpc import InferenceServiceStub
from ringline.options import ClassifyOptions, EmbedOptions, Message, Options, ScoreOptions, TokenizeOptions
from ringline.outputs import Adapter
from ringline.pooling import Classifications, Embeddings, Input, Ranking, Scores
from ringline.pooling_messages import (
    CONCURRENT,
    Piece,
    check_top_n,
    classifications_from,
    classify_pieces,
    embed_pieces,
    embeddings_from,
    one_query,
    ranking_from,
    read_inputs,
    score_pieces,
    scores_from,
)
from ringline.request import build_detokenize, build_tokenize
from ringline.results import (
    Generation,
    ListedAdapter,
    Model,
    Tokenization,
    adapter_from,
    adapters_from,
    models_from,
    pieces_from,
    tokenization_from,
)
from ringline.retry import DEFAULT_TIMEOUT, Deadline, RetryPolicy, RetryState, check_timeout
from ringline.security import CallMetadata, Pem, Security
from ringline.server_pool import ServerPool
from ringline.session import Session
from ringline.session_stream import SessionCall

if TYPE_CHECKING:  # the stub is one class at run time
    from ringline.inference.v1.inference_pb2_grpc import InferenceServiceAsyncStub

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


_SERVICE = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name


class _Connection(NamedTuple):
    channel: grpc.aio.Channel
    stub: InferenceServiceAsyncStub
    session: grpc.aio.StreamStreamMultiCallable[bytes, pb.SessionResponse]
    """Of packed frames, like ``tokenize``: packing pictures would hold up the event loop."""
    tokenize: grpc.aio.UnaryUnaryMultiCallable[bytes, pb.TokenizeResponse]


class AsyncClient:
    """``Client`` for asyncio. Connects at first use, and from then on belongs to the running event loop.

    Thousands of concurrent requests are cheap: they share one stream, on which the server batches outputs, and which
    reopens when lost.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        tls: bool = False,
        ca: Pem | None = None,
        cert: Pem | None = None,
        key: Pem | None = None,
        server_name: str | None = None,
        token: str | Callable[[], str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        proxy: bool = False,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        patience: float = 30.0,
        retries: int = 3,
        retry_overloaded: bool = False,
        wait_for_ready: bool = False,
    ) -> None:
        """See ``Client``."""
        self._policy = RetryPolicy(patience, retries, retry_overloaded, wait_for_ready)
        self._addresses, token, token_name = find_target(address, token, metadata)
        self._security = Security(credentials, tls, ca, cert, key, server_name, token, proxy, token_name)
        self._security.check_addresses(self._addresses)
        self._metadata = CallMetadata(metadata, token)
        check_timeout(timeout)
        self._timeout = timeout
        self._connected: ServerPool[_Connection] | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._session = self.session()
        self._closed = False
        self._parent: AsyncClient | None = None
        """The client whose connections are used; None: this one's."""

    def with_metadata(self, metadata: Mapping[str, str]) -> AsyncClient:
        """A client on the same connections that sends further metadata, such as another caller's token.

        The metadata replaces pairs of the same names, and ``authorization`` replaces this client's token. Closing the
        new client ends its requests and its stream, and leaves the connections open.
        """
        child = copy.copy(self)
        child._metadata = self._metadata.extended(metadata)
        child._parent = self._parent or self
        child._session = child.session()
        return child

    def session(self) -> Session:
        """A further Session, with its own stream and flow control."""
        return Session(self._pool, self._open_session, timeout=self._timeout, policy=self._policy)

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """See ``Client.generate``."""
        return await self._session.generate(prompt, messages=messages, token_ids=token_ids, **options)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """See ``Client.stream``."""
        return self._session.stream(prompt, messages=messages, token_ids=token_ids, **options)

    async def embed(self, inputs: Input | Iterable[Input], **options: Unpack[EmbedOptions]) -> Embeddings:
        """See ``Client.embed``."""
        timeout = options.pop("timeout", self._timeout)
        return embeddings_from(await self._each(lambda to: to.stub.Embed, embed_pieces(inputs, options), timeout))

    async def score(
        self, queries: Input | Iterable[Input], documents: Input | Iterable[Input], **options: Unpack[ScoreOptions]
    ) -> Scores:
        """See ``Client.score``."""
        timeout = options.pop("timeout", self._timeout)
        pieces = score_pieces(queries, documents, options)
        return scores_from(await self._each(lambda to: to.stub.Score, pieces, timeout))

    async def rerank(
        self, query: Input, documents: Iterable[Input], *, top_n: int | None = None, **options: Unpack[ScoreOptions]
    ) -> Ranking:
        """See ``Client.rerank``."""
        check_top_n(top_n)
        given = read_inputs(documents, "documents")
        return ranking_from(await self.score(one_query(query), given, **options), given, top_n)

    async def classify(self, inputs: Input | Iterable[Input], **options: Unpack[ClassifyOptions]) -> Classifications:
        """See ``Client.classify``."""
        timeout = options.pop("timeout", self._timeout)
        pieces = classify_pieces(inputs, options)
        return classifications_from(await self._each(lambda to: to.stub.Classify, pieces, timeout))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[TokenizeOptions],
    ) -> Tokenization:
        """See ``Client.tokenize``."""
        timeout = options.pop("timeout", self._timeout)
        request = build_tokenize(text, messages, options)
        return tokenization_from(await self._tokenize(request, timeout))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        skip_special_tokens: bool | None = None,
    ) -> str:
        """See ``Client.detokenize``."""
        request = build_detokenize(token_ids, model, skip_special_tokens)
        return (await self._call(lambda to: to.stub.Detokenize, request, self._timeout)).text

    async def token_pieces(self, token_ids: Sequence[int], *, model: str | None = None) -> tuple[bytes, ...]:
        """See ``Client.token_pieces``."""
        request = build_detokenize(token_ids, model, None, pieces=True)
        return pieces_from(await self._call(lambda to: to.stub.Detokenize, request, self._timeout), len(token_ids))

    async def models(self) -> tuple[Model, ...]:
        """See ``Client.models``."""
        return models_from(await self._call(lambda to: to.stub.ListModels, pb.ListModelsRequest(), self._timeout))

    async def adapters(self, *, model: str | None = None) -> tuple[ListedAdapter, ...]:
        """See ``Client.adapters``."""
        found: list[ListedAdapter] = []
        request = pb.ListAdaptersRequest(model=model or "")
        while True:
            page = await self._call(lambda to: to.stub.ListAdapters, request, self._timeout)
            found += adapters_from(page)
            if not (page.more and page.adapters):
                return tuple(found)
            request.after = page.adapters[-1].adapter.name

    async def load_adapter(self, name: str, path: str, *, model: str | None = None, replace: bool = False) -> Adapter:
        """See ``Client.load_adapter``."""
        request = pb.LoadAdapterRequest(model=model or "", name=name, path=path, replace=replace)
        return adapter_from((await self._call(lambda to: to.stub.LoadAdapter, request, self._timeout)).adapter)

    async def unload_adapter(self, name: str, *, model: str | None = None) -> Adapter:
        """See ``Client.unload_adapter``."""
        request = pb.UnloadAdapterRequest(model=model or "", name=name)
        return adapter_from((await self._call(lambda to: to.stub.UnloadAdapter, request, self._timeout)).adapter)

    async def close(self) -> None:
        """End every running request and close the connections."""
        self._closed = True
        await self._session.close()
        if self._connected is not None and self._parent is None:
            self._connected.closed = True
            for connection in self._connected.connections():
                await connection.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _open_session(self, connection: _Connection) -> SessionCall:
        return connection.session(metadata=self._metadata())

    async def _tokenize(self, request: pb.TokenizeRequest, seconds: float | None) -> pb.TokenizeResponse:
        pack = request.SerializeToString
        packed = await asyncio.to_thread(pack) if has_pictures(request.chat) else pack()
        return await self._call(lambda to: to.tokenize, packed, seconds)

    async def _each(
        self,
        method: Callable[[_Connection], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
        pieces: Iterable[Piece[_Request]],
        seconds: float | None,
    ) -> list[tuple[Piece[_Request], _Response]]:
        """Each message of one call with its answer."""
        deadline = Deadline(seconds)

        async def ask(piece: Piece[_Request]) -> tuple[Piece[_Request], _Response]:
            try:
                return piece, await self._call(method, piece.request, deadline.remaining())
            except RingError as error:
                raise piece.error(error) from None

        return await all_in_order(ask, pieces, CONCURRENT)

    async def _call(
        self,
        method: Callable[[_Connection], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        seconds: float | None,
    ) -> _Response:
        deadline, began = Deadline(seconds), time.monotonic()
        retry_state = RetryState(self._policy, deadline)
        pool = self._pool()
        while True:
            server = pool.choose()
            try:
                with pool.using(server) as used:
                    call = method(used.connection)
                    answer = await call(request, timeout=deadline.remaining(), metadata=self._metadata())
            except grpc.RpcError as failure:
                error = pool.attempt_failed(server, from_lost_call(failure), began)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if pool.closed and task is not None and not task.cancelling():  # ``close`` cancelled the call
                    raise Cancelled("the client was closed") from None
                raise
            else:
                pool.succeeded(server)
                return answer
            await asyncio.sleep(retry_state.delay(error, any_available=pool.any_available))

    def _pool(self) -> ServerPool[_Connection]:
        if self._closed and (self._connected is None or self._parent is not None):
            raise Cancelled("the client is closed")
        if self._parent is not None:
            return self._parent._pool()
        if self._connected is None:  # created late: connections belong to the running event loop
            self._connected = ServerPool(
                self._addresses, self._connect, stamp=self._security.files_stamp, close=self._close_soon
            )
        return self._connected

    def _close_soon(self, connection: _Connection) -> None:
        task = asyncio.ensure_future(connection.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _connect(self, target: str) -> _Connection:
        channel = self._security.aio_channel(target)
        stub = cast("InferenceServiceAsyncStub", InferenceServiceStub(channel))
        return _Connection(
            channel,
            stub,
            channel.stream_stream(f"/{_SERVICE}/Session", None, pb.SessionResponse.FromString),
            channel.unary_unary(f"/{_SERVICE}/Tokenize", None, pb.TokenizeResponse.FromString),
        )
