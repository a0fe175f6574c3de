"""Attacks on memory: messages that are small on the wire and large once parsed, and answers that nobody reads."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2, sampling_pb2

from services.common.rpc.shared_messages import hello_message
from services.ring.identity import PeerId
from tests.abuse.client import DETOKENIZER, ENGINE, INFERENCE, Act, Attack, HostileClient
from tests.abuse.wire import Connection, field, message

LARGE = (4 << 20) - 64
"""Bytes of a message just below the default limit."""
MEDIUM = 1 << 20
STREAMS = 16
"""Unread calls per connection."""
TINY_WINDOW = 10
"""Bytes of window, fewer than any first message has: the call stalls in it."""
INCOMPLETE = 2000
"""Calls with unfinished messages, per connection."""
_DETOKENIZER_NAME = "detokenizer-0"
_DECODE_TIME = 1.0
"""Seconds until what was submitted has reached a detokenizer."""


# To the processor


_WIDE: tuple[tuple[Callable[[int], inference_pb2.GenerateRequest], int], ...] = (
    (lambda count: _request(stopping={"stop": ["s"] * count, "bad_words": ["b"] * count}), 1_000_000),
    (lambda count: _request(sampling={"logit_bias": dict.fromkeys(range(count), 1.0)}), 500_000),
    (lambda count: _request(resume={"choices": [{}] * count}), 4_000_000),
    (lambda count: _request(chat={"messages": [{"role": "assistant", "tool_calls": [{}] * count}]}), 4_000_000),
    (lambda count: _request(token_ids={"ids": [7] * count}), 16_000_000),
)
"""Requests with a field of many items, and how many fit."""


def _request(**fields: Any) -> inference_pb2.GenerateRequest:
    prompt = {} if fields.keys() & {"chat", "token_ids"} else {"text": "a"}
    return inference_pb2.GenerateRequest(**prompt, **fields)


@cache
def _wide(index: int) -> bytes:
    make, count = _WIDE[index]
    return make(count).SerializeToString()


def _asks(method: str, make: Callable[[HostileClient], bytes]) -> Act:
    """A call with one message."""

    async def act(client: HostileClient) -> None:
        await client.ask(INFERENCE + method, make(client))

    return act


def _empty_chat(number: int) -> Callable[[HostileClient], bytes]:
    """A chat of empty messages, which take two bytes each on the wire, in the field of that number."""
    return lambda _: field(number, b"\x0a\x00" * (LARGE // 2))


def _ids(client: HostileClient) -> bytes:
    ids = bytes((5 + client.rng.randrange(100),)) * LARGE
    return field(inference_pb2.DetokenizeRequest.TOKEN_IDS_FIELD_NUMBER, ids)


def _text(size: int) -> bytes:
    return inference_pb2.TokenizeRequest(text="Once upon a time " * (size // 17)).SerializeToString()


async def _unread_answers(client: HostileClient) -> None:
    """Sessions with the largest possible answers, and too little window for them."""
    connection = await client.lasting_connection(window=client.rng.choice((0, TINY_WINDOW)), reads=False)
    for _ in range(2):
        session = await connection.call(INFERENCE + "Session", tenant_of(client))
        for number in range(2):
            request = inference_pb2.GenerateRequest(request_id=str(number), text="Once upon a time " * 20)
            request.sampling.n = 4
            request.output.logprobs = 20
            request.output.prompt_logprobs = 20
            request.output.return_prompt_token_ids = True
            request.stopping.ignore_eos = True
            await send_message(connection, session, inference_pb2.SessionRequest(generate=request).SerializeToString())
    await connection.wait_closed()


async def _unread_refusals(client: HostileClient) -> None:
    """Sessions whose requests are all refused, while nobody reads the refusals."""
    connection = await client.lasting_connection(window=0, reads=False)
    session = await connection.call(INFERENCE + "Session", tenant_of(client))
    refused = message(b"\x0a\x02\x0a\x00") * 1000
    for _ in range(100):
        await connection.send(session, refused)


async def _unread_lookups(client: HostileClient) -> None:
    """Tokenize calls whose answers nobody reads."""
    connection = await client.lasting_connection(window=0, reads=False)
    for _ in range(STREAMS):
        stream = await connection.call(INFERENCE + "Tokenize", tenant_of(client))
        await connection.send(stream, message(_text(MEDIUM)), last=True)


# To the engine


def new_hello(client: HostileClient) -> link_pb2.Hello:
    """Of a new incarnation of the client's peer."""
    return hello_message(client.new_incarnation())


def honest_submit(request_id: str, tenant: str, prompt: Iterable[int]) -> engine_pb2.Submit:
    """An ordinary request: 64 tokens, decoded greedily."""
    made = engine_pb2.Submit(
        request_id=request_id, epoch=1, prompt_token_ids=prompt, max_tokens=64, ignore_eos=True, tenant=tenant
    )
    sampling = made.sampling
    sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k = 0.0, 1.0, 0.0, 0
    sampling.repetition_penalty, sampling.seed, sampling.n = 1.0, 1, 1
    sampling.frequency_penalty = sampling.presence_penalty = 0.0
    return made


def submit(client: HostileClient, number: int, hello: link_pb2.Hello) -> engine_pb2.Submit:
    """A valid request."""
    prompt = [5 + client.rng.randrange(500) for _ in range(8)]
    return honest_submit(f"{hello.incarnation}-{number}", f"hostile-{client.number}", prompt)


async def attach(client: HostileClient, connection: Connection, hello: link_pb2.Hello) -> int:
    """Call Attach and send ``hello``; returns the stream."""
    stream = await connection.call(ENGINE + "Attach")
    await send_message(connection, stream, engine_pb2.AttachRequest(hello=hello).SerializeToString())
    return stream


async def _unread_outputs(client: HostileClient) -> None:
    """The engine computes the largest possible outputs for a peer that never reads."""
    connection = await client.lasting_connection(window=client.rng.choice((0, TINY_WINDOW)), reads=False)
    hello = new_hello(client)
    stream = await attach(client, connection, hello)
    for number in range(2):
        wanted = submit(client, number, hello)
        wanted.logprobs = wanted.prompt_logprobs = 20
        wanted.sampling.n = 4
        await send_command(connection, stream, engine_pb2.Command(submit=wanted))
    await connection.wait_closed()


async def _large_submits(client: HostileClient) -> None:
    """Submits filled up to the message limit, each with one field."""
    hello = new_hello(client)
    async with client.connection() as connection:
        stream = await attach(client, connection, hello)
        for number in range(4):
            wanted = submit(client, number, hello)
            match client.rng.randrange(4):
                case 0:
                    wanted.output_context = bytes(LARGE - 1024)
                case 1:
                    wanted.resume.extend([sampling_pb2.ResumedChoice()] * 2_000_000)
                case 2:
                    wanted.sampling.logit_bias.update(dict.fromkeys(range(500_000), 1.0))
                case _:
                    wanted.prompt_token_ids.extend([7] * 8_000_000)
            await send_command(connection, stream, engine_pb2.Command(submit=wanted))


async def _empty_commands(client: HostileClient) -> None:
    """Half a million empty commands, each answered by a rejection."""
    async with client.connection() as connection:
        stream = await attach(client, connection, new_hello(client))
        await send_message(connection, stream, b"\x12\x00" * (MEDIUM // 2))
        await connection.wait_streams_ended(1)


async def _unread_tokenizers(client: HostileClient) -> None:
    """GetTokenizer calls whose answers nobody reads."""
    connection = await client.lasting_connection(window=0, reads=False)
    for _ in range(STREAMS):
        stream = await connection.call(ENGINE + "GetTokenizer")
        await connection.send(stream, message(b""), last=True)
    await connection.wait_closed()


# To the detokenizer


async def _wide_contexts(client: HostileClient) -> None:
    """Output contexts as large as an engine takes them, of which a detokenizer builds stop-string automata."""
    hello = new_hello(client)
    async with client.connection("engine") as connection:
        stream = await attach(client, connection, hello)
        for number in range(8):
            context = detokenizer_pb2.OutputContext(
                reply_to=hello.name,
                reply_incarnation=hello.incarnation,
                tokenizer_digest=client.tokenizer,
                stop_strings=[f"{number}{at}" for at in range(1500)],
            )
            wanted = submit(client, number, hello)
            wanted.deliver_to, wanted.output_context = _DETOKENIZER_NAME, context.SerializeToString()
            await send_command(connection, stream, engine_pb2.Command(submit=wanted))
        await asyncio.sleep(_DECODE_TIME)


async def _unread_texts(client: HostileClient) -> None:
    """The detokenizer decodes for a subscriber that never reads."""
    hello = new_hello(client)
    texts = await client.lasting_connection(window=client.rng.choice((0, TINY_WINDOW)), reads=False)
    subscription = await texts.call(DETOKENIZER + "Subscribe")
    await texts.send(
        subscription, message(detokenizer_pb2.SubscribeRequest(hello=hello).SerializeToString()), last=True
    )
    async with client.connection("engine") as connection:
        stream = await attach(client, connection, hello)
        context = detokenizer_pb2.OutputContext(
            reply_to=hello.name, reply_incarnation=hello.incarnation, tokenizer_digest=client.tokenizer
        )
        for number in range(4):
            wanted = submit(client, number, hello)
            wanted.logprobs = 20
            wanted.deliver_to, wanted.output_context = _DETOKENIZER_NAME, context.SerializeToString()
            await send_command(connection, stream, engine_pb2.Command(submit=wanted))
        await texts.wait_closed()


async def _large_hellos(client: HostileClient) -> None:
    hello = hello_message(PeerId("n" * (LARGE - 64), 1))
    await client.ask(DETOKENIZER + "Subscribe", detokenizer_pb2.SubscribeRequest(hello=hello).SerializeToString())


# To any of them


def _incomplete(method: str) -> Act:
    async def act(client: HostileClient) -> None:
        """Messages of 4 MiB whose beginnings fill the server's windows, and that never end."""
        connection = await client.lasting_connection()
        begun = b"\0" + struct.pack(">I", LARGE) + bytes(1 << 18)
        for _ in range(INCOMPLETE):
            stream = await connection.call(method)
            await connection.send_what_fits(stream, begun)
        await connection.wait_closed()

    return act


async def send_message(connection: Connection, stream: int, data: bytes) -> None:
    await connection.send(stream, message(data))


async def send_command(connection: Connection, stream: int, command: engine_pb2.Command) -> None:
    await send_message(connection, stream, engine_pb2.AttachRequest(commands=[command]).SerializeToString())


def tenant_of(client: HostileClient) -> dict[str, str]:
    return {"x-ringline-tenant": f"hostile-{client.number}"}


MEMORY_ATTACKS = (
    Attack("empty chats", "processor", _asks("Generate", _empty_chat(inference_pb2.GenerateRequest.CHAT_FIELD_NUMBER))),
    Attack(
        "empty chats to tokenize",
        "processor",
        _asks("Tokenize", _empty_chat(inference_pb2.TokenizeRequest.CHAT_FIELD_NUMBER)),
    ),
    Attack("wide fields", "processor", _asks("Generate", lambda client: _wide(client.rng.randrange(len(_WIDE))))),
    Attack("detokenize", "processor", _asks("Detokenize", _ids)),
    Attack("tokenize", "processor", _asks("Tokenize", lambda _: _text(LARGE))),
    Attack("unread answers", "processor", _unread_answers, lingers=True, fills=True),
    Attack("unread refusals", "processor", _unread_refusals, rounds=4, lingers=True),
    Attack("unread lookups", "processor", _unread_lookups, rounds=2, lingers=True),
    Attack("unread outputs", "engine", _unread_outputs, lingers=True),
    Attack("large submits", "engine", _large_submits),
    Attack("empty commands", "engine", _empty_commands),
    Attack("unread tokenizers", "engine", _unread_tokenizers, lingers=True),
    Attack("wide contexts", "detokenizer", _wide_contexts, fills=True),
    Attack("unread texts", "detokenizer", _unread_texts, lingers=True),
    Attack("large hellos", "detokenizer", _large_hellos),
    Attack("incomplete messages", "processor", _incomplete(INFERENCE + "Session")),
    Attack("incomplete messages", "engine", _incomplete(ENGINE + "Attach")),
    Attack("incomplete messages", "detokenizer", _incomplete(DETOKENIZER + "Subscribe")),
)
