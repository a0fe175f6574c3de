"""Attacks by requests for vectors and scores: the largest that are taken, unread, cancelled, or sent slowly."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2, pooling_pb2

from services.ring.limits import MAX_POOLED_BYTES, MAX_POOLED_CHOICES, MAX_POOLED_INPUTS
from tests.abuse.client import INFERENCE, Act, Attack, HostileClient
from tests.abuse.memory_attacks import LARGE, TINY_WINDOW, attach, new_hello, send_command, send_message, tenant_of
from tests.abuse.wire import field, message
from tests.chaos.vectors import NAME
from tests.pooling_models import MAX_MODEL_LEN, WIDTH

PAIRS = "pairs"
"""Name of the model that reads pairs."""
_MOST_TOKENS = MAX_POOLED_BYTES // (4 * WIDTH)
"""Of a request with vectors of all tokens."""
_MOST_TEXT = (64 << 10) + 8 * MAX_MODEL_LEN
"""Bytes of a text."""
_MOST_REPEATED = 16 << 20
"""Characters of a query times its documents."""
_ADDED_TOKENS = 8
"""Room for what a tokenizer adds."""
_WORDS = "Once upon a time "
_CUT = inference_pb2.PoolingOptions(truncation=inference_pb2.TRUNCATION_END)
_CANCELLED = 10
"""Calls of a round that are cancelled."""
_UPLOADS = 20
"""Messages that a connection sends slowly."""
_PIECE, _PIECE_PAUSE = 256, 0.5
"""Bytes of a slow message that are sent at a time, and seconds until the next ones."""


def _texts(count: int, size: int) -> list[inference_pb2.PoolingInput]:
    """``count`` inputs of ``size`` bytes."""
    return [inference_pb2.PoolingInput(text=(_WORDS * (size // len(_WORDS) + 1))[:size])] * count


@cache
def _batch() -> bytes:
    """As many inputs as there may be, each longer than the model takes, in as large a message as is taken."""
    size = LARGE // MAX_POOLED_INPUTS - 8
    return _embed(inputs=_texts(MAX_POOLED_INPUTS, size), options=_CUT)


@cache
def _long_texts() -> bytes:
    """Texts of as many bytes as a text may have."""
    return _embed(inputs=_texts(LARGE // (_MOST_TEXT + 16), _MOST_TEXT), options=_CUT)


@cache
def _tokens() -> bytes:
    """Vectors of tokens: as large a result as there may be."""
    ids = inference_pb2.PoolingInput()
    ids.token_ids.ids.extend([7] * (MAX_MODEL_LEN - _ADDED_TOKENS))
    return _embed(inputs=[ids] * (_MOST_TOKENS // MAX_MODEL_LEN), per_token=True)


def _embed(**fields: Any) -> bytes:
    return inference_pb2.EmbedRequest(request_id="0", model=NAME, **fields).SerializeToString()


@cache
def _pairs(query_size: int, documents: int) -> bytes:
    """A query of so many bytes, and documents of a few."""
    asked = inference_pb2.ScoreRequest(
        request_id="0", model=PAIRS, queries=_texts(1, query_size), documents=_texts(documents, 8), options=_CUT
    )
    return asked.SerializeToString()


@cache
def _compared() -> bytes:
    """As many queries as documents, all of which become vectors."""
    each = _texts(MAX_POOLED_INPUTS, 100)
    return inference_pb2.ScoreRequest(request_id="0", model=NAME, queries=each, documents=each).SerializeToString()


@cache
def _empty_inputs(number: int) -> bytes:
    """Empty inputs, which take two bytes each on the wire, in the field of that number."""
    return field(number, b"") * (LARGE // 2)


_PAIR_SIZES = ((_MOST_REPEATED // MAX_POOLED_INPUTS - 1, MAX_POOLED_INPUTS), (1500, MAX_POOLED_INPUTS), (60_000, 270))
"""Bytes of a query, and documents. Queries that are too long are refused once they are encoded."""
_WIDE = (
    ("Embed", inference_pb2.EmbedRequest.INPUTS_FIELD_NUMBER),
    ("Score", inference_pb2.ScoreRequest.QUERIES_FIELD_NUMBER),
    ("Score", inference_pb2.ScoreRequest.DOCUMENTS_FIELD_NUMBER),
    ("Classify", inference_pb2.ClassifyRequest.INPUTS_FIELD_NUMBER),
)


async def _wide(client: HostileClient) -> None:
    method, number = client.rng.choice(_WIDE)
    await client.ask(INFERENCE + method, _empty_inputs(number))


async def _score_pairs(client: HostileClient) -> None:
    await _ask(client, "Score", _pairs(*client.rng.choice(_PAIR_SIZES)))


async def _ask(client: HostileClient, method: str, data: bytes) -> None:
    """Make a call in the client's own name, and read its answer to the end."""
    async with client.connection() as connection:
        stream = await connection.call(INFERENCE + method, tenant_of(client))
        await connection.send(stream, message(data), last=True)
        await connection.wait_streams_ended(1)


def _asks(method: str, make: Callable[[], bytes]) -> Act:
    async def act(client: HostileClient) -> None:
        await _ask(client, method, make())

    return act


async def _unread(client: HostileClient) -> None:
    """The largest results, by calls and by a session, and too little window for them."""
    connection = await client.lasting_connection(window=client.rng.choice((0, TINY_WINDOW)), reads=False)
    for _ in range(2):
        stream = await connection.call(INFERENCE + "Embed", tenant_of(client))
        await connection.send(stream, message(_tokens()), last=True)
    session = await connection.call(INFERENCE + "Session", tenant_of(client))
    for number in range(2):
        asked = inference_pb2.EmbedRequest.FromString(_tokens())
        asked.request_id = str(number)
        await send_message(connection, session, inference_pb2.SessionRequest(embed=asked).SerializeToString())
    await connection.wait_closed()


async def _slow_uploads(client: HostileClient) -> None:
    """Messages of the largest size that come a few bytes at a time."""
    connection = await client.lasting_connection()
    begun = b"\0" + struct.pack(">I", len(_batch()))
    streams = [await connection.call(INFERENCE + "Embed", tenant_of(client)) for _ in range(_UPLOADS)]
    for stream in streams:
        await connection.send_what_fits(stream, begun)
    at = 0
    while not connection.lost:
        for stream in streams:
            await connection.send_what_fits(stream, _batch()[at : at + _PIECE])
        at += _PIECE
        await asyncio.sleep(_PIECE_PAUSE)


async def _cancelled(client: HostileClient) -> None:
    """Large requests that are cancelled as soon as they were sent, or a little later."""
    async with client.connection() as connection:
        for _ in range(_CANCELLED):
            stream = await connection.call(INFERENCE + "Embed", tenant_of(client))
            await connection.send(stream, message(_embed(inputs=_texts(MAX_POOLED_INPUTS, 100))), last=True)
            await asyncio.sleep(client.rng.choice((0.0, 0.05, 0.3)))
            await connection.reset(stream)


# To an engine


def honest_pooling_submit(request_id: str, tenant: str) -> engine_pb2.Submit:
    """An ordinary request: vectors of 2 inputs of 32 tokens."""
    return _submit(request_id, tenant, pooling_pb2.POOLING_TASK_EMBED, 2, 32)


def _submit(
    request_id: str, tenant: str, task: pooling_pb2.PoolingTask.ValueType, inputs: int, tokens: int
) -> engine_pb2.Submit:
    params = pooling_pb2.PoolingParams(task=task, normalize=True)
    each = [engine_pb2.PoolingInput(choice=choice, token_ids=[7] * tokens) for choice in range(inputs)]
    return engine_pb2.Submit(
        request_id=request_id, epoch=1, tenant=tenant, pooling=engine_pb2.Pooling(params=params, inputs=each)
    )


def _submit_of(client: HostileClient, hello: link_pb2.Hello, number: int, **shape: Any) -> engine_pb2.Submit:
    return _submit(f"{hello.incarnation}-{number}", f"hostile-{client.number}", **shape)


async def _unread_results(client: HostileClient) -> None:
    """The engine computes the largest results for a peer that never reads."""
    connection = await client.lasting_connection(window=client.rng.choice((0, TINY_WINDOW)), reads=False)
    hello = new_hello(client)
    stream = await attach(client, connection, hello)
    shape = {"task": pooling_pb2.POOLING_TASK_TOKEN_EMBED, "inputs": _MOST_TOKENS // MAX_MODEL_LEN}
    for number in range(2):
        wanted = _submit_of(client, hello, number, tokens=MAX_MODEL_LEN, **shape)
        await send_command(connection, stream, engine_pb2.Command(submit=wanted))
    await connection.wait_closed()


async def _large_submits(client: HostileClient) -> None:
    """Submits of as many inputs, or as many ids, as are taken, and more."""
    hello = new_hello(client)
    async with client.connection() as connection:
        stream = await attach(client, connection, hello)
        for number, (inputs, tokens) in enumerate(((MAX_POOLED_CHOICES, 200), (2000, MAX_MODEL_LEN), (400_000, 1))):
            wanted = _submit_of(
                client, hello, number, task=pooling_pb2.POOLING_TASK_EMBED, inputs=inputs, tokens=tokens
            )
            await send_command(connection, stream, engine_pb2.Command(submit=wanted))


async def _submit_storms(client: HostileClient) -> None:
    """Requests of many inputs, each cancelled, superseded or done at once."""
    hello = new_hello(client)
    async with client.connection() as connection:
        stream = await attach(client, connection, hello)
        for number in range(20):
            wanted = _submit_of(client, hello, number, task=pooling_pb2.POOLING_TASK_EMBED, inputs=500, tokens=4)
            named = {"request_id": wanted.request_id}
            again = engine_pb2.Submit()
            again.CopyFrom(wanted)
            again.epoch = 2
            commands = [
                engine_pb2.Command(submit=wanted),
                engine_pb2.Command(submit=again),
                engine_pb2.Command(stop=engine_pb2.Stop(epoch=2, choice=7, position=0, **named)),
                engine_pb2.Command(cancel=engine_pb2.Cancel(epoch=2, **named)),
                engine_pb2.Command(done=engine_pb2.Done(epoch=2, **named)),
            ]
            await send_message(connection, stream, engine_pb2.AttachRequest(commands=commands).SerializeToString())


POOLING_ATTACKS = (
    Attack("pooled batches", "processor", _asks("Embed", _batch), fills=True),
    Attack("pooled long texts", "processor", _asks("Embed", _long_texts), fills=True),
    Attack("pooled tokens", "processor", _asks("Embed", _tokens), fills=True),
    Attack("pooled pairs", "processor", _score_pairs, fills=True),
    Attack("pooled comparisons", "processor", _asks("Score", _compared), fills=True),
    Attack("pooled empty inputs", "processor", _wide),
    Attack("pooled unread answers", "processor", _unread, lingers=True, fills=True),
    Attack("pooled slow uploads", "processor", _slow_uploads, lingers=True),
    Attack("pooled cancellations", "processor", _cancelled, fills=True),
    Attack("pooled unread results", "embedder", _unread_results, lingers=True, fills=True),
    Attack("pooled large submits", "embedder", _large_submits, fills=True),
    Attack("pooled storms", "embedder", _submit_storms, fills=True),
)
"""The embedder is an engine that makes vectors."""
