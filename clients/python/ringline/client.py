"""The blocking client: one call per request on one shared channel; safe to use from many threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import TracebackType
from typing import NamedTuple, Self, TypeVar, Unpack

import grpc

from ringline.constraints import json_reader
from ringline.environment import find_target
from ringline.errors import RingError, from_lost_call
from ringline.in_order import in_order
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
from ringline.request import build_detokenize, build_request, build_tokenize
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
from ringline.retrying_request import RetryingRequest
from ringline.security import CallMetadata, Pem, Security
from ringline.server_pool import ServerPool
from ringline.stream import GenerateCall, Stream

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class _Connection(NamedTuple):
    channel: grpc.Channel
    stub: InferenceServiceStub


class Client:
    """Client of Ringline servers. Use it as a context manager, or ``close()`` it.

    It hides the loss of a server: a request not yet admitted is sent again, and an admitted one is resumed after the
    last delivered token, on another server or on the same one once it is back.
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
        """``address``: a gRPC target (``host:port``, ``unix:/path``, ``dns:///name:port``), or several.

        Several targets are a list or one comma-separated string, used round-robin. Without ``address``, the environment
        names them in ``RINGLINE_ADDRESS``, and a token for them may be in ``RINGLINE_TOKEN``. ``metadata`` is sent with
        every call.

        ``timeout``: seconds for each call that gives none itself, an hour by default; None: no limit. It counts from
        the call to the end of its answer, over all attempts.

        Connections are plaintext unless one of these is given: ``tls``, ``ca`` (the trusted authorities; default: the
        public ones), ``cert`` and ``key`` (this client's certificate), or ``credentials`` instead of all of them.
        ``ca``, ``cert`` and ``key`` are paths of PEM files, or their contents as bytes; changed files are read again
        for new requests. ``server_name``: the name expected in the server's certificate, if not the address's host.
        ``token``: a bearer token, or a function that returns one and is called for each RPC.

        Proxies in the environment are ignored. With ``proxy``, servers on other machines are dialled through them, by
        gRPC's rules (``grpc_proxy``, ``https_proxy``, ``http_proxy``, but not ``no_proxy``).

        Until a client has reached a server, a request fails at once with Unavailable if no server can be connected to;
        the error gives each address and the reason. ``wait_for_ready``: keep trying for ``patience`` seconds instead.
        ``patience``: seconds for which a request looks for a server after each loss; 0: it fails at once.
        ``retries``: a request fails when it has lost more servers than this with nothing delivered in between.
        ``retry_overloaded``: also retry requests refused as Overloaded, after the delay that the server asked for.
        """
        self._policy = RetryPolicy(patience, retries, retry_overloaded, wait_for_ready)
        addresses, token, token_name = find_target(address, token, metadata)
        self._metadata = CallMetadata(metadata, token)
        check_timeout(timeout)
        self._timeout = timeout
        security = Security(credentials, tls, ca, cert, key, server_name, token, proxy, token_name)
        security.check_addresses(addresses)

        def connect(target: str) -> _Connection:
            channel = security.channel(target)
            return _Connection(channel, InferenceServiceStub(channel))

        self._pool = ServerPool(
            addresses, connect, stamp=security.files_stamp, close=lambda connection: connection.channel.close()
        )

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """The whole answer to a text, a conversation or token ids.

        Raises a RingError unless every choice ended well; its ``partial`` holds what was delivered before.
        """
        with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return stream.result()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """The answer as it arrives. The request is sent when the first delta is read."""
        timeout = options.pop("timeout", self._timeout)
        request = build_request(prompt, messages, token_ids, options)
        deadline = Deadline(timeout)
        retrying = RetryingRequest(request, RetryState(self._policy, deadline), deadline, json_reader(options))
        return Stream(self._pool, self._generate, retrying)

    def embed(self, inputs: Input | Iterable[Input], **options: Unpack[EmbedOptions]) -> Embeddings:
        """Vectors of one or many texts, or lists of token ids, in their order.

        ``options``: see ``EmbedOptions``. A long list goes in several messages, a few at a time; a server that is lost
        meanwhile is replaced as by other calls. Raises a RingError, which names the input at fault if it is one's, and
        FailedPrecondition if the model makes no vectors.

            embeddings = client.embed(["A dog runs.", "Un chien court."])
            print(len(embeddings[0]), embeddings.usage.prompt_tokens)
        """
        timeout = options.pop("timeout", self._timeout)
        return embeddings_from(self._each(lambda stub: stub.Embed, embed_pieces(inputs, options), timeout))

    def score(
        self, queries: Input | Iterable[Input], documents: Input | Iterable[Input], **options: Unpack[ScoreOptions]
    ) -> Scores:
        """How well each document matches the query, or its own one if there are as many: by a model that reads both
        together, else by the cosine of their vectors.

        ``options``: see ``ScoreOptions``; errors as in ``embed``.
        """
        timeout = options.pop("timeout", self._timeout)
        pieces = score_pieces(queries, documents, options)
        return scores_from(self._each(lambda stub: stub.Score, pieces, timeout))

    def rerank(
        self, query: Input, documents: Iterable[Input], *, top_n: int | None = None, **options: Unpack[ScoreOptions]
    ) -> Ranking:
        """The ``top_n`` documents (default: all) that match the query best, the best first.

        ``options``: see ``ScoreOptions``; errors as in ``embed``.

            for ranked in client.rerank("Who barks?", ["Cats meow.", "Dogs bark."], top_n=1):
                print(ranked.score, ranked.document)
        """
        check_top_n(top_n)
        given = read_inputs(documents, "documents")
        return ranking_from(self.score(one_query(query), given, **options), given, top_n)

    def classify(self, inputs: Input | Iterable[Input], **options: Unpack[ClassifyOptions]) -> Classifications:
        """Labels of one or many texts, or lists of token ids, in their order.

        ``options``: see ``ClassifyOptions``; errors as in ``embed``.
        """
        timeout = options.pop("timeout", self._timeout)
        pieces = classify_pieces(inputs, options)
        return classifications_from(self._each(lambda stub: stub.Classify, pieces, timeout))

    def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[TokenizeOptions],
    ) -> Tokenization:
        """The token ids of a text or a conversation, as ``generate`` would use them.

        Options: ``model``, ``timeout``, ``add_special_tokens`` and, for messages, tools and the template's options.
        """
        timeout = options.pop("timeout", self._timeout)
        request = build_tokenize(text, messages, options)
        return tokenization_from(self._call(lambda stub: stub.Tokenize, request, timeout))

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        skip_special_tokens: bool | None = None,
    ) -> str:
        """The text of ``token_ids``, decoded as a whole."""
        request = build_detokenize(token_ids, model, skip_special_tokens)
        return self._call(lambda stub: stub.Detokenize, request, self._timeout).text

    def token_pieces(self, token_ids: Sequence[int], *, model: str | None = None) -> tuple[bytes, ...]:
        """The bytes of each token, special ones included, within a text; they may be a part of a character.

        Raises FailedPrecondition if the server is too old: its models lack the capability ``pieces``.
        """
        request = build_detokenize(token_ids, model, None, pieces=True)
        return pieces_from(self._call(lambda stub: stub.Detokenize, request, self._timeout), len(token_ids))

    def models(self) -> tuple[Model, ...]:
        """The models that the server serves."""
        return models_from(self._call(lambda stub: stub.ListModels, pb.ListModelsRequest(), self._timeout))

    def adapters(self, *, model: str | None = None) -> tuple[ListedAdapter, ...]:
        """The adapters of a model (default: the one that is served) that this client may use, by name."""
        found: list[ListedAdapter] = []
        request = pb.ListAdaptersRequest(model=model or "")
        while True:
            page = self._call(lambda stub: stub.ListAdapters, request, self._timeout)
            found += adapters_from(page)
            if not (page.more and page.adapters):
                return tuple(found)
            request.after = page.adapters[-1].adapter.name

    def load_adapter(self, name: str, path: str, *, model: str | None = None, replace: bool = False) -> Adapter:
        """Make an adapter known at every engine of a model; ``path``: a folder below the engines' ``--lora-dir``.

        With ``replace``, a name that stands for another adapter stands for this one from now on; requests that have the
        earlier one keep it. Raises PermissionDenied unless the server lets its clients load adapters,
        FailedPrecondition if the name is taken, InvalidRequest if an engine cannot use the adapter; the error names the
        engine.
        """
        request = pb.LoadAdapterRequest(model=model or "", name=name, path=path, replace=replace)
        return adapter_from((self._call(lambda stub: stub.LoadAdapter, request, self._timeout)).adapter)

    def unload_adapter(self, name: str, *, model: str | None = None) -> Adapter:
        """Forget the adapter of a name at every engine of a model; requests that have it keep it.

        Raises NotFound if no engine has it, and PermissionDenied as ``load_adapter`` does.
        """
        request = pb.UnloadAdapterRequest(model=model or "", name=name)
        return adapter_from((self._call(lambda stub: stub.UnloadAdapter, request, self._timeout)).adapter)

    def close(self) -> None:
        """End every running request and close the connections."""
        self._pool.closed = True
        for connection in self._pool.connections():
            connection.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _generate(self, connection: _Connection, request: pb.GenerateRequest, timeout: float | None) -> GenerateCall:
        return connection.stub.Generate(request, timeout=timeout, metadata=self._metadata())

    def _each(
        self,
        method: Callable[[InferenceServiceStub], grpc.UnaryUnaryMultiCallable[_Request, _Response]],
        pieces: Iterable[Piece[_Request]],
        seconds: float | None,
    ) -> Iterator[tuple[Piece[_Request], _Response]]:
        """Each message of one call with its answer."""
        deadline = Deadline(seconds)

        def ask(piece: Piece[_Request]) -> tuple[Piece[_Request], _Response]:
            try:
                return piece, self._call(method, piece.request, deadline.remaining())
            except RingError as error:
                raise piece.error(error) from None

        left = iter(pieces)
        ahead = list(islice(left, 2))
        return map(ask, ahead) if len(ahead) < 2 else in_order(ask, chain(ahead, left), CONCURRENT)

    def _call(
        self,
        method: Callable[[InferenceServiceStub], grpc.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        seconds: float | None,
    ) -> _Response:
        deadline, began = Deadline(seconds), time.monotonic()
        retry_state = RetryState(self._policy, deadline)
        while True:
            server = self._pool.choose()
            try:
                with self._pool.using(server) as used:
                    call = method(used.connection.stub)
                    answer = call(request, timeout=deadline.remaining(), metadata=self._metadata())
            except grpc.RpcError as failure:
                error = self._pool.attempt_failed(server, from_lost_call(failure), began)
            else:
                self._pool.succeeded(server)
                return answer
            time.sleep(retry_state.delay(error, any_available=self._pool.any_available))
