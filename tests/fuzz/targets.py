"""Sends mutated messages by every RPC that a client can call, on streams that begin with valid ones."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2, sampling_pb2
from smg_grpc_proto import vllm_engine_pb2

from services.common.links.channels import Endpoint
from services.common.rpc.shared_messages import hello_message
from services.ring.identity import PeerId
from tests.fuzz import pooling_messages as pooling
from tests.fuzz.mutations import mutate, mutate_fields

PER_STREAM = 25
"""Mutated messages on one stream. Only the last one's bytes are mutated: if it cannot be parsed, the stream ends."""
REQUESTS = 4
"""Requests with mutated contexts on one stream; the engine computes each of them."""
PATIENCE = 60.0
"""Seconds after which a call counts as hung."""
READ_ONE, READ_STREAM = 0.05, 2.0
"""Seconds for which an answer is read before the call is cancelled."""

INFERENCE, VLLM, ENGINE, DETOKENIZER = (
    "/ringline.inference.v1.InferenceService/",
    "/vllm.grpc.engine.VllmEngine/",
    "/ringline.engine.v1.EngineService/",
    "/ringline.detokenizer.v1.DetokenizerService/",
)

_SERVICES = {INFERENCE: "processor", VLLM: "processor", ENGINE: "engine", DETOKENIZER: "detokenizer"}
DETOKENIZER_NAME = "detokenizer-0"
"""As ``ringline serve`` names it."""

_STOPPING = inference_pb2.StoppingParams(max_tokens=3)
_GENERATE = (
    inference_pb2.GenerateRequest(request_id="f", text="Once upon a time", stopping=_STOPPING),
    inference_pb2.GenerateRequest(
        request_id="f",
        token_ids=sampling_pb2.TokenIds(ids=[5, 6, 7]),
        sampling=inference_pb2.SamplingParams(temperature=0.5, top_k=5, top_p=0.9, seed=1, n=2),
        stopping=inference_pb2.StoppingParams(max_tokens=4, stop=["x"], stop_token_ids=[9], bad_words=["fox"]),
        output=inference_pb2.OutputParams(logprobs=2, prompt_logprobs=1),
    ),
    inference_pb2.GenerateRequest(
        request_id="f",
        chat=inference_pb2.Chat(
            messages=[inference_pb2.ChatMessage(role="user", content="Hello!")],
            tools_json="[]",
            template_args_json="{}",
        ),
        stopping=_STOPPING,
        resume=inference_pb2.Resume(choices=[sampling_pb2.ResumedChoice(choice=0, token_ids=[5])], model_digest="m"),
    ),
    inference_pb2.GenerateRequest(
        request_id="f",
        chat=inference_pb2.Chat(
            messages=[
                inference_pb2.ChatMessage(
                    role="user",
                    content_parts=[
                        inference_pb2.ContentPart(text="See:"),
                        inference_pb2.ContentPart(media=inference_pb2.Media(data=b"GIF89a", mime_type="image/gif")),
                        inference_pb2.ContentPart(media=inference_pb2.Media(data_url="data:image/gif;base64,R0lGODlh")),
                    ],
                )
            ]
        ),
        stopping=_STOPPING,
    ),
)
_VLLM_PARAMS = vllm_engine_pb2.SamplingParams(temperature=0.5, top_p=0.9, max_tokens=3, stop=["x"], logprobs=2)
_VLLM_GENERATE = (
    vllm_engine_pb2.GenerateRequest(request_id="f", text="Once", stream=True, sampling_params=_VLLM_PARAMS),
    vllm_engine_pb2.GenerateRequest(
        request_id="f",
        tokenized={"input_ids": [5, 6, 7]},
        sampling_params={"n": 2, "max_tokens": 3, "prompt_logprobs": 1, "structural_tag": '{"structures": []}'},
    ),
)
_SUBMIT = engine_pb2.Submit(
    request_id="f-1",
    epoch=1,
    prompt_token_ids=[5, 6, 7],
    sampling=engine_pb2.SamplingParams(
        temperature=0.5,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        seed=1,
        n=1,
    ),
    max_tokens=3,
)
_CHUNK = engine_pb2.MediaChunk(
    digest=bytes(32),
    header=engine_pb2.MediaHeader(views=[engine_pb2.MediaView(height=1, width=2)], num_tokens=1),
    data=bytes(6),
)


class Fuzzer:
    """Sends mutated messages, and counts how calls end."""

    def __init__(self, channels: Mapping[str, grpc.aio.Channel], seed: int, kind: str) -> None:
        """``kind``: of the ring."""
        self._channels = channels
        self._kind = kind
        self._seed = seed
        self.rng = random.Random(seed)
        self._incarnations = 0
        self._digest: str | None = None
        self.sent = 0
        self.codes: dict[str, int] = {}
        self.failures: list[str] = []
        """Calls that a service failed or let hang."""

    async def run(self, service: str, inputs: int, rate: float | None = None) -> None:
        """Send ``inputs`` messages to a service by all of its RPCs, at most ``rate`` a second."""
        rounds, begun, start = _TARGETS[self._kind][service], self.sent, time.monotonic()
        while (sent := self.sent - begun) < inputs:
            if rate is not None:
                await asyncio.sleep(start + sent / rate - time.monotonic())
            await self.rng.choice(rounds)(self)

    async def send_one(self, method: str, *good: Message) -> None:
        """Make a call with one mutated message."""
        data = mutate(self.rng, self.rng.choice(good))
        self.sent += 1
        call = self._channel(method).unary_stream(method)(data, timeout=PATIENCE)
        await self._record_status(method, data, self._read_for(call, READ_ONE))

    async def send_stream(self, method: str, begin: list[Message], answer: type[Message], *good: Message) -> None:
        """Make a call that begins with valid messages and goes on with mutated ones, answered by ``answer``."""
        frames = [message.SerializeToString() for message in begin]
        frames += [mutate_fields(self.rng, self.rng.choice(good)) for _ in range(PER_STREAM - 1)]
        frames.append(mutate(self.rng, self.rng.choice(good)))
        self.sent += PER_STREAM
        call = self._channel(method).stream_stream(method)(timeout=PATIENCE)

        async def write_frames() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for frame in frames:
                    await call.write(frame)
                await call.done_writing()

        writer = asyncio.create_task(write_frames())
        await self._record_status(method, b"".join(frames[-3:]), self._read_for(call, READ_STREAM, answer))
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)

    async def send_contexts(self) -> None:
        """Submit requests with mutated output contexts, then a valid one, which must be answered."""
        hello = self.new_hello()
        good = detokenizer_pb2.OutputContext(
            reply_to=hello.name,
            reply_incarnation=hello.incarnation,
            prompt_tail=[5, 6, 7],
            stop_strings=["fox", "Once upon"],
            min_tokens=1,
            tokenizer_digest=await self._tokenizer_digest(),
        )
        damage = [mutate(self.rng, good) for _ in range(REQUESTS)]
        self.sent += REQUESTS
        await self._record_status(
            "OutputContext", b"".join(damage[-3:]), self._decode(hello, [*damage, good.SerializeToString()])
        )

    async def _decode(self, hello: link_pb2.Hello, contexts: list[bytes]) -> None:
        """Return when the text of the last context's request has been read."""
        subscribe = DETOKENIZER + "Subscribe"
        begin = detokenizer_pb2.SubscribeRequest(hello=hello).SerializeToString()
        texts = self._channel(subscribe).unary_stream(subscribe)(begin, timeout=PATIENCE)
        engine = self._channel(ENGINE).stream_stream(ENGINE + "Attach")(timeout=PATIENCE)
        try:
            await texts.read()  # Welcome
            await engine.write(engine_pb2.AttachRequest(hello=hello).SerializeToString())
            for number, context in enumerate(contexts):
                submit = engine_pb2.Submit(deliver_to=DETOKENIZER_NAME, output_context=context)
                submit.MergeFrom(_SUBMIT)
                submit.request_id = f"{hello.incarnation}-{number}"
                submit.max_tokens = 1
                command = engine_pb2.Command(submit=submit)
                await engine.write(engine_pb2.AttachRequest(commands=[command]).SerializeToString())
            while (frame := await texts.read()) is not grpc.aio.EOF:
                outputs = detokenizer_pb2.SubscribeResponse.FromString(frame).outputs
                if any(finish.request_id == submit.request_id for finish in outputs.finished):
                    return
        finally:
            texts.cancel()
            engine.cancel()

    async def _tokenizer_digest(self) -> str:
        """The digest that contexts must have."""
        if self._digest is None:
            call = self._channel(ENGINE).unary_unary(ENGINE + "GetModel")
            model = engine_pb2.GetModelResponse.FromString(await call(b"", timeout=PATIENCE))
            self._digest = model.tokenizer_digest
        return self._digest

    def new_hello(self) -> link_pb2.Hello:
        """Of a new peer or a new incarnation."""
        self._incarnations += 1
        name = f"fuzz-{self._seed}-{self._incarnations % 10}"
        return hello_message(PeerId(name, self._seed * 10**7 + self._incarnations))

    def _channel(self, method: str) -> grpc.aio.Channel:
        """To the service of ``method``."""
        return next(channel for prefix, channel in self._channels.items() if method.startswith(prefix))

    async def _read_for(
        self, call: grpc.aio.UnaryStreamCall[bytes, bytes], seconds: float, answer: type[Message] | None = None
    ) -> None:
        """Read for ``seconds``; raises the status if the call ends with an error.

        ``answer``: what the call sends, in which errors of single requests are looked for.
        """
        try:
            async with asyncio.timeout(seconds):
                while (data := await call.read()) is not grpc.aio.EOF:
                    for status in statuses_in(answer.FromString(data)) if answer is not None else ():
                        if status.code in _FAILURE_NUMBERS:
                            self.failures.append(f"{answer.__name__}: a request ended with {status.message[:400]}")
        except TimeoutError:
            call.cancel()

    async def _record_status(self, method: str, data: bytes, call: Awaitable[None]) -> None:
        code, details = grpc.StatusCode.OK, ""
        try:
            await call
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
        name = "LOST" if details == _LOST else code.name
        self.codes[name] = self.codes.get(name, 0) + 1
        if code in _FAILURES and details != _LOST and not (details.startswith(_LATE) and _has_little_time(data)):
            self.failures.append(f"{method}: {code.name} {details[:200]} after {data[:400].hex()}")


_LOST = "Internal error from Core"
"""With this grpc.aio replaces the status of a stream that ended while this process wrote to it."""
_LATE = "its deadline passed "
"""Before it was admitted; of requests that pool, also later."""
_LITTLE_TIME_MS = 1000
_TIMED = (
    inference_pb2.GenerateRequest,
    inference_pb2.EmbedRequest,
    inference_pb2.ScoreRequest,
    inference_pb2.ClassifyRequest,
)
_FAILURES = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.DATA_LOSS,
)
_FAILURE_NUMBERS = [code.value[0] for code in _FAILURES if code is not grpc.StatusCode.DEADLINE_EXCEEDED]
"""A mutation may give a request of a stream a short time."""


def statuses_in(message: Message) -> Iterator[status_pb2.Status]:
    """Every status in ``message``, at any depth."""
    if isinstance(message, status_pb2.Status):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if field.is_repeated else (value,):
                yield from statuses_in(each)


def _has_little_time(data: bytes) -> bool:
    """Whether a mutation gave the request so short a timeout that it may expire."""
    for kind in _TIMED:
        with contextlib.suppress(DecodeError):
            request: Any = kind.FromString(data)
            timed = request if isinstance(request, inference_pb2.GenerateRequest) else request.options
            if timed.HasField("timeout_ms") and timed.timeout_ms < _LITTLE_TIME_MS:
                return True
    return False


_Round = Callable[["Fuzzer"], Awaitable[None]]


def _session(*frames: inference_pb2.SessionRequest) -> _Round:
    cancel = inference_pb2.SessionRequest(cancel=inference_pb2.CancelRequest(request_id="f"))
    return lambda fuzzer: fuzzer.send_stream(INFERENCE + "Session", [], inference_pb2.SessionResponse, *frames, cancel)


def _attach(*submits: engine_pb2.Submit) -> _Round:
    commands = [
        *(engine_pb2.Command(submit=submit) for submit in submits),
        engine_pb2.Command(media=_CHUNK),
        engine_pb2.Command(cancel=engine_pb2.Cancel(request_id="f-1", epoch=1)),
        engine_pb2.Command(done=engine_pb2.Done(request_id="f-1", epoch=1)),
        engine_pb2.Command(stop=engine_pb2.Stop(request_id="f-1", epoch=1)),
        engine_pb2.Command(redirect=engine_pb2.Redirect(request_id="f-1", epoch=2)),
    ]
    frames = [engine_pb2.AttachRequest(commands=[command]) for command in commands]

    def attach(fuzzer: Fuzzer) -> Awaitable[None]:
        hello = engine_pb2.AttachRequest(hello=fuzzer.new_hello())
        begin = [hello] if fuzzer.rng.random() < 0.9 else []
        return fuzzer.send_stream(ENGINE + "Attach", begin, engine_pb2.AttachResponse, *frames)

    return attach


def _one(method: str, *good: Message) -> _Round:
    return lambda fuzzer: fuzzer.send_one(method, *good)


_GENERATING = [inference_pb2.SessionRequest(generate=request) for request in _GENERATE]
_POOLING = [
    *(inference_pb2.SessionRequest(embed=request) for request in pooling.EMBED),
    *(inference_pb2.SessionRequest(score=request) for request in pooling.SCORE),
    *(inference_pb2.SessionRequest(classify=request) for request in pooling.CLASSIFY),
]
_POOLING_CALLS = [
    _one(INFERENCE + "Embed", *pooling.EMBED),
    _one(INFERENCE + "Score", *pooling.SCORE),
    _one(INFERENCE + "Classify", *pooling.CLASSIFY),
    _one(VLLM + "Embed", *pooling.VLLM_EMBED),
]
_TEXT_CALLS = [
    _one(INFERENCE + "Generate", *_GENERATE),
    _one(
        INFERENCE + "Tokenize",
        inference_pb2.TokenizeRequest(text="Once"),
        inference_pb2.TokenizeRequest(chat=_GENERATE[2].chat),
    ),
    _one(INFERENCE + "Detokenize", inference_pb2.DetokenizeRequest(token_ids=[5, 6])),
    _one(INFERENCE + "ListModels", inference_pb2.ListModelsRequest()),
    _one(VLLM + "Generate", *_VLLM_GENERATE),
    _one(VLLM + "Abort", vllm_engine_pb2.AbortRequest(request_ids=["f"])),
]
_ENGINE_CALLS = [
    _one(ENGINE + "GetModel", engine_pb2.GetModelRequest()),
    _one(ENGINE + "GetLoad", engine_pb2.GetLoadRequest()),
    _one(ENGINE + "ResetPrefixCache", engine_pb2.ResetPrefixCacheRequest()),
]
_POOLING_RING: Mapping[str, Sequence[_Round]] = {
    "processor": [_session(*_POOLING, *_GENERATING[:1]), *_POOLING_CALLS * 3, *_TEXT_CALLS],
    "engine": [_attach(*pooling.SUBMIT, _SUBMIT), *_ENGINE_CALLS],
}
_TARGETS: Mapping[str, Mapping[str, Sequence[_Round]]] = {
    "tokens": {
        "processor": [_session(*_GENERATING, *_POOLING), *_TEXT_CALLS, *_POOLING_CALLS],
        "engine": [_attach(_SUBMIT, *pooling.SUBMIT[:1]), *_ENGINE_CALLS],
        "detokenizer": [
            Fuzzer.send_contexts,
            lambda fuzzer: fuzzer.send_one(
                DETOKENIZER + "Subscribe", detokenizer_pb2.SubscribeRequest(hello=fuzzer.new_hello())
            ),
        ],
    },
    "vectors": _POOLING_RING,
    "scores": _POOLING_RING,
}
"""Without Drain and Profile, which end or slow an engine by design, and GetTokenizer, whose answer is long."""


@asynccontextmanager
async def fuzzing(addresses: Mapping[str, str], seed: int, kind: str = "tokens") -> AsyncIterator[Fuzzer]:
    """``addresses``: of a ring's services, by name; ``kind``: what it makes. Concurrent fuzzers must have different
    seeds.
    """
    async with AsyncExitStack() as stack:
        channels = {}
        for prefix, service in _SERVICES.items():
            channels[prefix] = await stack.enter_async_context(Endpoint(addresses[service]).open())
        yield Fuzzer(channels, seed, kind)
