"""The client for TypeScript goes on as the Python client does: of equal scripts, equal requests and outcomes."""

from __future__ import annotations

import asyncio
import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest
import ringline
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2, part_pb2
from ringline.types.v1.constraint_pb2 import Constraint

from tests.clients.either_client import answer, connected, events
from tests.clients.scripted_server import (
    Abort,
    Cut,
    Script,
    Served,
    admitted,
    call,
    delta,
    ended,
    hello,
    play,
    refusal,
    started,
    status,
)

pytestmark = [
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node and npm are not installed"),
    pytest.mark.usefixtures("ring"),
]

KNOWN = {"prompt_token_ids": [1, 2, 3], "model_digest": "tokenized for"}
LOST = Abort(grpc.StatusCode.UNAVAILABLE)
FORM = Constraint(regex="ab", after_reasoning=False)
PIECES = [
    part_pb2.Part(reasoning="why"),
    part_pb2.Part(content="so"),
    call('{"a"', "add"),
    call(": 1}"),
    part_pb2.Part(content="end"),
]
REST = play(admitted(**KNOWN), started(), delta(1, [11], "b"), ended(completion=2))


def divided() -> pb.GenerateResponse:
    made = admitted(constraint=FORM, **KNOWN)
    made.admitted.output.parse.reasoning = "think"
    return made


def failed(code: grpc.StatusCode, reason: str) -> list[pb.GenerateResponse]:
    info = error_details_pb2.ErrorInfo(reason=reason, domain="ringline")
    return ended(output_pb2.FINISH_REASON_ERROR, completion=1, error=status(code, "scripted", info))


SCENARIOS: dict[str, list[Script]] = {
    "calm": [hello],
    "lost before it was admitted": [play(LOST), hello],
    "lost before a token": [
        play(admitted(**KNOWN), LOST),
        play(admitted(**KNOWN), delta(0, [1], "a"), ended(completion=1)),
    ],
    "lost after a token": [play(admitted(**KNOWN), started(), delta(0, [10], "a"), LOST), REST],
    "cut off": [play(admitted(**KNOWN), started(), delta(0, [10], "a"), Cut()), REST],
    "a form, divided": [
        play(divided(), started(), delta(0, [10], "a"), LOST),
        play(divided(), started(), delta(1, [11], "b"), ended(completion=2)),
    ],
    "one choice of two had ended": [
        play(
            admitted(2, **KNOWN), started(), delta(0, [10], "a"), delta(0, [20], "x", choice=1), ended(choice=0), LOST
        ),
        play(admitted(2, **KNOWN), started(), delta(1, [21], "y", choice=1), ended(choice=1, completion=2)),
    ],
    "lost after its end": [play(admitted(**KNOWN), delta(0, [10], "a"), ended(reasoning=1), LOST)],
    "parts": [play(admitted(), delta(0, [10], "a", parts=PIECES[:3]), ended(completion=1, parts=PIECES[3:]))],
    "moved elsewhere": [
        play(admitted(**KNOWN), started(), delta(0, [10], "a"), failed(grpc.StatusCode.UNAVAILABLE, "NO_ROUTE")),
        REST,
    ],
    "the model is gone": [
        play(admitted(**KNOWN), started(), delta(0, [10], "a"), failed(grpc.StatusCode.UNAVAILABLE, "MODEL_GONE"))
    ],
    "another seed after a loss": [
        play(admitted(**KNOWN), delta(0, [10], "a"), LOST),
        play(admitted(prompt_tokens=4, **KNOWN)),
    ],
    "full": [play(refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full"))],
    "refused": [play(refusal(grpc.StatusCode.INVALID_ARGUMENT, "wrong"))],
    "a gap": [play(admitted(**KNOWN), delta(1, [10], "a"))],
    "a wrong count": [play(admitted(**KNOWN), delta(0, [10], "a"), ended(completion=5))],
    "no prompt to go on with": [play(admitted(), delta(0, [10], "a"), LOST)],
    "it crashes servers": [play(admitted(**KNOWN), LOST)] * 2,
    "failed": [play(admitted(**KNOWN), delta(0, [10], "a"), failed(grpc.StatusCode.INTERNAL, "POISON"))],
}
CLIENTS = {"call": ringline.Client, "session": ringline.AsyncClient}
KINDS = {"PromptLogprobs": "promptLogprobs"}


def asked(served: Served) -> list[pb.GenerateRequest]:
    """What the server was asked, without the ids that clients make up and with its time in minutes; and forgets it."""
    requests = [pb.GenerateRequest.FromString(request.SerializeToString()) for request in served.service.requests]
    served.service.requests.clear()
    for request in requests:
        request.request_id = ""
        request.timeout_ms = round(request.timeout_ms / 60_000)
    return requests


async def by_python(served: Served, way: str) -> dict[str, Any]:
    kinds: list[str] = []
    async with connected(CLIENTS[way], served.address, retries=1) as client:
        stream = client.stream("Hi", max_tokens=9, cache_salt="salt", priority=2)
        try:
            async for event in events(stream):
                name = type(event).__name__
                kinds.append(KINDS.get(name, name.lower()))
            found = await answer(client, stream.result)
        except ringline.RingError as error:
            partial = error.partial and [[one.text, list(one.token_ids)] for one in error.partial.choices]
            return {
                "kinds": kinds,
                "error": type(error).__name__,
                "code": error.code.name,
                "reason": error.reason,
                "partial": partial,
            }
    usage = found.usage
    choices = [
        [
            *(one.text, list(one.token_ids), one.finish_reason, one.stop, one.content, one.reasoning),
            [[each.id, each.name, each.arguments] for each in one.tool_calls],
        ]
        for one in found.choices
    ]
    tokens = [usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens]
    return {"kinds": kinds, "resumed": found.resumed, "tokens": tokens, "choices": choices}


@pytest.mark.parametrize("way", CLIENTS)
async def test_it_goes_on_as_the_python_client_does(
    way: str, server: Served, typescript_programs: Path, tmp_path: Path
) -> None:
    expected: dict[str, tuple[Any, list[pb.GenerateRequest]]] = {}
    for name, scripts in SCENARIOS.items():
        server.service.scripts = list(scripts)
        expected[name] = await by_python(server, way), asked(server)
        assert len(expected[name][1]) == len(scripts), name
    server.service.scripts = [script for scripts in SCENARIOS.values() for script in scripts]
    ask = {"prompt": "Hi", "options": {"maxTokens": 9, "cacheSalt": "salt", "priority": 2}}
    plan = tmp_path / "plan.json"
    asks = {"way": way, "options": {"retries": 1}, "asks": [ask] * len(SCENARIOS)}
    plan.write_text(json.dumps({"address": server.address, **asks}))
    node = await asyncio.create_subprocess_exec(
        "node", str(typescript_programs / "outcomes.js"), str(plan), stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await asyncio.wait_for(node.communicate(), 250)
    requests = iter(asked(server))
    for (name, (outcome, right)), found in zip(expected.items(), json.loads(shown), strict=True):
        assert found == outcome, name
        assert list(islice(requests, len(right))) == right, name
    assert list(requests) == []
