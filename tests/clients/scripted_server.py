"""An InferenceService that plays scripts over real sockets, and the messages that scripts are made of.

A script is an async generator: it is given the request and yields its responses, good or nasty.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1.inference_pb2_grpc import InferenceServiceServicer, add_InferenceServiceServicer_to_server
from ringline.types.v1 import adapter_pb2, link_pb2, output_pb2, part_pb2

from tests.ports import HeldPort


class Abort(Exception):
    """Raised by a script: the call (of a Session: the whole Session) ends with this status."""

    def __init__(self, code: grpc.StatusCode, message: str = "scripted") -> None:
        super().__init__(message)
        self.code = code


class Cut(Exception):
    """Raised by a script: the call ends well, as if nothing were missing."""


Script = Callable[[pb.GenerateRequest], AsyncIterator[pb.GenerateResponse]]


def admitted(n: int = 1, prompt_tokens: int = 3, **fields: object) -> pb.GenerateResponse:
    sampling = pb.SamplingParams(n=n, seed=7, temperature=0.0, top_p=1.0)
    stopping = pb.StoppingParams(max_tokens=16, min_tokens=0, ignore_eos=False)
    message = pb.Admitted(prompt_tokens=prompt_tokens, sampling=sampling, stopping=stopping, model="tiny", **fields)
    return pb.GenerateResponse(admitted=message)


def delta(
    position: int,
    token_ids: Sequence[int],
    text: str,
    choice: int = 0,
    logprobs: output_pb2.Logprobs | None = None,
    parts: Sequence[part_pb2.Part] = (),
) -> pb.GenerateResponse:
    message = pb.Delta(
        choice=choice, first_position=position, text=text, token_ids=token_ids, logprobs=logprobs, parts=parts
    )
    return pb.GenerateResponse(delta=message)


def call(arguments: str, name: str = "", index: int = 0) -> part_pb2.Part:
    """A piece of a tool call; the first one has a name."""
    piece = part_pb2.ToolCallPiece(index=index, id=name and f"id-{name}", name=name, arguments_json=arguments)
    return part_pb2.Part(tool_call=piece)


def ended(
    reason: output_pb2.FinishReason = output_pb2.FINISH_REASON_LENGTH,
    choice: int = 0,
    completion: int | None = None,
    error: status_pb2.Status | None = None,
    reasoning: int = 0,
    **fields: object,
) -> list[pb.GenerateResponse]:
    """The end of a choice; and of the request if ``completion`` is given: 3 prompt tokens, 1 of them cached.

    The usage counts the ``reasoning`` tokens of this choice alone. ``fields``: what stopped it, and its last parts.
    """
    message = pb.ChoiceFinished(choice=choice, finish_reason=reason, error=error, reasoning_tokens=reasoning, **fields)
    responses = [pb.GenerateResponse(choice_finished=message)]
    if completion is not None:
        usage = pb.Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=completion, reasoning_tokens=reasoning)
        responses.append(pb.GenerateResponse(request_finished=pb.RequestFinished(usage=usage)))
    return responses


def started(reason: str = "", *, identical: bool = True) -> pb.GenerateResponse:
    """An engine begins, or goes on."""
    message = pb.Started(model_digest="model", numerics="numerics", identical=identical, reason=reason)
    return pb.GenerateResponse(started=message)


def scores(offset: int, *ranks: int) -> pb.GenerateResponse:
    """Log probabilities of the prompt's tokens from ``offset`` on."""
    packed = output_pb2.Logprobs(logprobs=[-1.0] * len(ranks), ranks=ranks)
    return pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(offset=offset, logprobs=packed))


def refusal(code: grpc.StatusCode, message: str, *details: Message) -> pb.GenerateResponse:
    return pb.GenerateResponse(refused=pb.Refused(status=status(code, message, *details)))


def status(code: grpc.StatusCode, message: str, *details: Message) -> status_pb2.Status:
    made = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        made.details.add().Pack(detail)
    return made


async def hello(request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
    """Three deltas and an end."""
    yield admitted()
    yield delta(0, [10], "Hello")
    yield delta(1, [11, 12], ", wor")
    yield delta(3, [13], "ld")
    for response in ended(output_pb2.FINISH_REASON_STOP, completion=4, stop_token_id=13):
        yield response


async def forever(request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
    """A token every millisecond, without end."""
    yield admitted()
    position = 0
    while True:
        yield delta(position, [position % 100], "x")
        position += 1
        await asyncio.sleep(0.001)


def play(*parts: pb.GenerateResponse | Exception | asyncio.Event | list[pb.GenerateResponse]) -> Script:
    """A script that yields these, raises what is an exception, and goes on when an event is set."""

    async def script(request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
        lists = [part if isinstance(part, list) else [part] for part in parts]
        for response in itertools.chain.from_iterable(lists):
            if isinstance(response, Exception):
                raise response
            if isinstance(response, asyncio.Event):
                await response.wait()
                continue
            copy = pb.GenerateResponse()
            copy.CopyFrom(response)
            yield copy

    return script


class Clock:
    """Monotonic, and put forward by scripts."""

    def __init__(self) -> None:
        self._fast = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._fast

    def passes(self, seconds: float, script: Script) -> Script:
        """A script before which so much time passes."""

        def later(request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
            self._fast += seconds
            return script(request)

        return later


class ScriptedInference(InferenceServiceServicer):
    """Plays ``scripts`` one after the other, one per request; the last one again and again."""

    def __init__(self) -> None:
        self.scripts: list[Script] = [hello]
        self.limits = pb.SessionLimits(max_live_requests=1000, max_message_bytes=1 << 20, stall_timeout_ms=10_000)
        self.listed_before: list[pb.Model] = []
        """Models that are served, too."""
        self.model = pb.Model(name="tiny", vocab_size=512, max_model_len=64, eos_token_ids=[2], has_chat_template=True)
        self.requests: list[pb.GenerateRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.sessions = 0
        self.most_live = 0
        self.may_begin = asyncio.Event()
        """While it is not set, no Session gets its first frame."""
        self.may_begin.set()
        self.asked = asyncio.Event()
        """Set when a request came."""
        self.cancelled = asyncio.Event()
        """Set when a client cancelled a request, by either kind of call."""
        self.closed = asyncio.Event()
        """Set when a client closed its side of a Session."""
        self.tokenized: list[pb.TokenizeRequest] = []
        self.unary_failures: list[grpc.StatusCode] = []
        """Statuses of the next unary calls."""
        self.adapters: list[pb.ListedAdapter] = []
        self.adapters_per_page = 2
        self.refuse_control: Callable[[Message, grpc.aio.ServicerContext], Awaitable[None]] | None = None
        """Ends the next calls that change adapters."""
        self.controlled: list[pb.LoadAdapterRequest | pb.UnloadAdapterRequest] = []
        self.tokenize_refusal: status_pb2.Status | None = None
        """How all that is to be tokenized is refused."""

    def _script(self, request: pb.GenerateRequest) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        self.asked.set()
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        return script(request)

    async def Generate(self, request, context):
        self.metadata.append(dict(context.invocation_metadata()))
        played = asyncio.Event()
        context.add_done_callback(lambda _: None if played.is_set() else self.cancelled.set())
        try:
            async for response in self._script(request):
                yield response
                if response.HasField("refused"):
                    code = next(code for code in grpc.StatusCode if code.value[0] == response.refused.status.code)
                    played.set()
                    await context.abort(code, response.refused.status.message)
            played.set()
        except Abort as abort:
            played.set()
            await context.abort(abort.code, str(abort))
        except Cut:
            played.set()

    async def Session(self, request_iterator, context):
        self.metadata.append(dict(context.invocation_metadata()))
        self.sessions += 1
        await self.may_begin.wait()
        yield pb.SessionResponse(limits=self.limits)
        news: asyncio.Queue[pb.SessionResponse | Exception] = asyncio.Queue()
        self._news = news
        reader = asyncio.create_task(self._read(request_iterator, news))
        try:
            while not isinstance(item := await news.get(), Exception):
                yield item
            if isinstance(item, Abort):
                await context.abort(item.code, str(item))
        finally:
            reader.cancel()

    async def drain(self) -> None:
        """Say on the latest Session that it drains."""
        await self._news.put(pb.SessionResponse(draining=link_pb2.Draining(grace_ms=1000)))

    async def _read(self, frames, news: asyncio.Queue) -> None:
        live: dict[str, asyncio.Task] = {}
        try:
            async for frame in frames:
                if frame.HasField("generate"):
                    request = frame.generate
                    live[request.request_id] = asyncio.create_task(self._play(request, news, live))
                    self.most_live = max(self.most_live, len(live))
                elif task := live.pop(frame.cancel.request_id, None):
                    task.cancel()
                    self.cancelled.set()
                    last = ended(output_pb2.FINISH_REASON_CANCELLED, completion=0)
                    for response in last:
                        response.request_id = frame.cancel.request_id
                    await news.put(pb.SessionResponse(responses=last))
            self.closed.set()
        finally:
            for task in live.values():
                task.cancel()

    async def _play(self, request: pb.GenerateRequest, news: asyncio.Queue, live: dict[str, asyncio.Task]) -> None:
        try:
            async for response in self._script(request):
                if not response.in_reply_to:
                    response.request_id = request.request_id
                if response.WhichOneof("event") in ("refused", "request_finished"):
                    live.pop(request.request_id, None)
                await news.put(pb.SessionResponse(responses=[response]))
        except (Abort, Cut) as end:
            await news.put(end)
        live.pop(request.request_id, None)

    async def Tokenize(self, request, context):
        await self._fail_unary(context)
        self.tokenized.append(request)
        if (refused := self.tokenize_refusal) is not None:
            code = next(code for code in grpc.StatusCode if code.value[0] == refused.code)
            trailers = (("grpc-status-details-bin", refused.SerializeToString()),)
            await context.abort(code, refused.message, trailing_metadata=trailers)
        return pb.TokenizeResponse(token_ids=list(request.text.encode()), rendered="", max_model_len=64)

    async def Detokenize(self, request, context):
        await self._fail_unary(context)
        pieces = [bytes([token_id]) for token_id in request.token_ids if request.pieces]
        return pb.DetokenizeResponse(text=bytes(request.token_ids).decode(), pieces=pieces)

    async def ListModels(self, request, context):
        await self._fail_unary(context)
        return pb.ListModelsResponse(models=[*self.listed_before, *([self.model] if self.model else [])])

    async def ListAdapters(self, request, context):
        await self._fail_unary(context)
        behind = [each for each in self.adapters if each.adapter.name > request.after]
        return pb.ListAdaptersResponse(
            adapters=behind[: self.adapters_per_page], more=len(behind) > self.adapters_per_page
        )

    async def LoadAdapter(self, request, context):
        await self._fail_unary(context)
        if self.refuse_control is not None:
            await self.refuse_control(request, context)
        self.controlled.append(request)
        return pb.LoadAdapterResponse(adapter=adapter_pb2.Adapter(name=request.name, digest="1" * 64), engines=2)

    async def UnloadAdapter(self, request, context):
        await self._fail_unary(context)
        if self.refuse_control is not None:
            await self.refuse_control(request, context)
        self.controlled.append(request)
        return pb.UnloadAdapterResponse(adapter=adapter_pb2.Adapter(name=request.name, digest="1" * 64), engines=2)

    async def _fail_unary(self, context) -> None:
        if self.unary_failures:
            await context.abort(self.unary_failures.pop(0), "scripted")


class Served:
    """A running scripted service."""

    def __init__(self, service: ScriptedInference, server: grpc.aio.Server, address: str) -> None:
        self.service = service
        self.server = server
        self.address = address

    def plays(self, *scripts: Script) -> None:
        self.service.scripts = list(scripts)


@asynccontextmanager
async def serving(service: ScriptedInference, address: str | None = None) -> AsyncIterator[Served]:
    """At a port that nobody else is given before the end, even if it is stopped before, or at ``address``."""
    server, port = (
        grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]),
        HeldPort(),
    )
    add_InferenceServiceServicer_to_server(service, server)
    address = address or f"127.0.0.1:{port.number}"
    server.add_insecure_port(address)
    await server.start()
    try:
        yield Served(service, server, address)
    finally:
        await server.stop(None)
        port.release()
