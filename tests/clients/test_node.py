"""The front door works from another language, with stubs that its own tools generate: ``node/``."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import grpc
import pytest
import ringline
from ringline.types.v1.constraint_pb2 import Constraint

from tests.clients.node_programs import compiled_programs
from tests.clients.processor_processes import Processors
from tests.clients.scripted_server import Abort, Served, admitted, delta, ended, play, started
from tests.programs import output_of

pytestmark = [
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node and npm are not installed"),
    pytest.mark.usefixtures("ring"),
]


@pytest.fixture(scope="module")
def programs() -> Path:
    return compiled_programs()


def test_node_client(ring, programs: Path) -> None:
    shown = json.loads(output_of("node", programs / "smoke.js", ring.address))
    assert shown["violations"] == []
    assert [choice["finishReason"] for choice in shown["generate"]["choices"]] == ["LENGTH", "LENGTH"]
    assert [len(choice["tokenIds"]) for choice in shown["generate"]["choices"]] == [12, 12]
    assert shown["generate"]["usage"]["completionTokens"] == 24
    (text,), (ids,) = shown["text"]["choices"], shown["ids"]["choices"]
    assert text == ids
    assert len(text["tokenIds"]) == 16
    assert text["text"]
    cancelled = shown["cancelled"]
    # Refused with google.rpc.Code.CANCELLED, if the cancel came before it was admitted.
    assert cancelled.get("error", {}).get("code") == 1 or {c["finishReason"] for c in cancelled["choices"]} == {
        "CANCELLED"
    }
    # google.rpc.Code.INVALID_ARGUMENT
    assert shown["refused"]["error"]["code"] == 3
    assert "temperature" in shown["refused"]["error"]["message"]


async def test_a_program_of_bare_stubs_keeps_to_its_model(server: Served, programs: Path) -> None:
    """The one that its prompt was tokenized for, and once tokens came, the one that computed them; and to its form."""
    lost = Abort(grpc.StatusCode.UNAVAILABLE)
    form = Constraint(regex="ab", after_reasoning=False)
    first = admitted(prompt_token_ids=[1, 2, 3], model_digest="tokenized for", constraint=form)
    first.admitted.output.parse.reasoning = "think"
    server.service.scripts = [
        play(first, lost),
        play(first, started(), delta(0, [10], "a"), lost),
        play(first, started(), delta(1, [11], "b"), ended(completion=2)),
    ]
    node = await asyncio.create_subprocess_exec(
        "node", str(programs / "resume.js"), server.address, "?", stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await asyncio.wait_for(node.communicate(), 250)
    assert json.loads(shown.splitlines()[-1])["choices"] == [{"tokenIds": [10, 11], "text": "ab", "ended": True}]
    resumes = [(asked.resume.model_digest, asked.resume.numerics) for asked in server.service.requests]
    assert resumes == [("", ""), ("tokenized for", ""), ("model", "numerics")]
    for asked in server.service.requests[1:]:
        assert (asked.constraint, asked.output.parse) == (form, first.admitted.output.parse)
        assert list(asked.requires) == ["constraint", "parse"]


async def test_a_program_of_bare_stubs_survives_its_processor(ring, processors: Processors, programs: Path) -> None:
    question = "What is 3 plus 4?"
    command = ("node", str(programs / "resume.js"), ",".join(processors.addresses), question, "400")

    async def begin() -> asyncio.Task[list[bytes]]:
        node = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        first = await node.stdout.readline()
        return asyncio.create_task(end(node, first))

    async def end(node: asyncio.subprocess.Process, first: bytes) -> list[bytes]:
        rest = await node.stdout.read()
        assert await node.wait() == 0
        return [first, *rest.splitlines()]

    reading, _ = await processors.kill_holder(begin)
    lines = await reading
    *deltas, last = map(json.loads, filter(None, lines))
    (choice,) = last["choices"]
    assert last["attempts"] > 1
    assert "".join(delta["text"] for delta in deltas) == choice["text"]
    with ringline.Client(ring.address) as client:
        calm = await asyncio.to_thread(
            client.generate,
            messages=[{"role": "user", "content": question}],
            max_tokens=400,
            ignore_eos=True,
            seed=int(last["seed"]),
        )
    assert choice["tokenIds"] == list(calm.token_ids)
    assert choice["text"] == calm.text
