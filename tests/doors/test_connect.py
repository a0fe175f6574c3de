"""Connect's packages for Node and for browsers, over gRPC-Web and Connect; and a stream whose processor is killed."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ringline import Client
from ringline.inference.v1 import inference_pb2 as pb

from services.gateway.rpc.envelope import enclose
from tests.browser import browsing
from tests.doors.clients import Shown, run_node, versions
from tests.doors.door import Door
from tests.doors.environments import HERE, of_node
from tests.programs import output_of
from tests.ring import ROOT, Ring, running_ring

pytestmark = pytest.mark.doors

FOLDER = HERE / "node" / "connect"
FORMS = "connect", "connect_json", "grpc_web"
PROMPT = "Once upon a time"
DETAILS = ["google.rpc.ErrorInfo", "google.rpc.BadRequest"]


@pytest.fixture(scope="module")
def stubs() -> None:
    """The programs' stubs, made of the contract by their own tools."""
    assert of_node("connect").is_made, "run `python -m tests.doors`, which installs what this needs"
    output_of(Path(sys.executable).parent / "buf", "generate", ROOT / "protos", cwd=FOLDER)


@pytest.fixture(scope="module")
def in_node(door: Door, stubs: None) -> Shown:
    return run_node("connect", "connect", door.url)


@pytest.fixture(scope="module")
def in_browser(door: Door, stubs: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bundle = tmp_path_factory.mktemp("bundle") / "browser.js"
    output_of(FOLDER / "node_modules/.bin/esbuild", "browser.mjs", "--bundle", f"--outfile={bundle}", cwd=FOLDER)
    with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        browser.open(door.url)
        browser.wait("document.querySelector('#model')?.textContent")
        browser.run(f"{bundle.read_text()}; 0")
        shown: dict[str, Any] = browser.run("tryConnect()")
    return shown


@pytest.fixture(params=["node", "browser"])
def shown(request: pytest.FixtureRequest, tried: Callable[[str], None]) -> dict[str, Any]:
    tried(versions(of_node("connect")))
    if request.param == "browser":
        found: dict[str, Any] = request.getfixturevalue("in_browser")
        return found
    in_node: Shown = request.getfixturevalue("in_node")
    return {form: in_node(form) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
def test_calls(shown: dict[str, Any], form: str, native: Client, door: Door) -> None:
    calls = shown[form]
    answer = native.generate(PROMPT, temperature=0, max_tokens=24, ignore_eos=True)
    assert calls["generate"] == {
        "answer": answer.text,
        "usage": 24,
        "first": "admitted",
        "last": "requestFinished",
    }
    ids = list(native.tokenize(PROMPT).token_ids)
    assert calls["unary"] == {"model": native.models()[0].name, "tokenIds": ids, "text": PROMPT}
    assert calls["refused"] == {
        "code": "InvalidArgument",
        "message": "sampling.temperature: -1 is out of range: expected at least 0",
        "details": DETAILS,
    }
    assert (calls["unknown"]["code"], calls["unknown"]["details"]) == ("NotFound", ["google.rpc.ErrorInfo"])
    assert calls["cancelled"]["code"] == "Canceled"
    assert calls["deadline"] == [4], "DEADLINE, as an event"
    assert calls["timeout"]["code"] == "DeadlineExceeded"
    assert door.becomes_idle()


def responses(ring: Ring) -> Iterator[pb.GenerateResponse]:
    """Of a long request, as they come."""
    asked = pb.GenerateRequest(
        text=PROMPT,
        sampling=pb.SamplingParams(seed=1, temperature=0.9),
        stopping=pb.StoppingParams(max_tokens=1500, ignore_eos=True),
        output=pb.OutputParams(logprobs=1),
    )
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(ring.http).netloc, timeout=120)
    body = enclose(0, asked.SerializeToString())
    path = "/ringline.inference.v1.InferenceService/Generate"
    connection.request("POST", path, body, {"content-type": "application/grpc-web+proto"})
    answer = connection.getresponse()
    while True:
        head = answer.read(5)
        data = answer.read(int.from_bytes(head[1:], "big"))
        if head[0]:
            assert data.startswith(b"grpc-status: 0\r\n")
            break
        yield pb.GenerateResponse.FromString(data)
    assert answer.read() == b""
    connection.close()


def gathered(all_responses: Iterator[pb.GenerateResponse]) -> tuple[list[str], str, list[int], list[float], int]:
    """What of a stream does not depend on how it is cut into deltas."""
    kinds, text, ids, logprobs, tokens = [], "", [], [], 0
    for response in all_responses:
        kind = response.WhichOneof("event") or ""
        if kind == "delta":
            assert response.delta.first_position == len(ids)
            text += response.delta.text
            ids += response.delta.token_ids
            logprobs += response.delta.logprobs.logprobs
        elif kind != "started":
            kinds.append(kind)
        tokens = response.request_finished.usage.completion_tokens
    return kinds, text, ids, logprobs, tokens


def test_a_stream_survives_its_processor(tmp_path: Path) -> None:
    with running_ring(tmp_path, http=True) as ring:
        calm = gathered(responses(ring))
        assert calm[0] == ["admitted", "choice_finished", "request_finished"]
        assert len(calm[2]) == calm[4] == 1500

        def interrupted() -> Iterator[pb.GenerateResponse]:
            starts = 0
            for number, response in enumerate(responses(ring)):
                starts += response.HasField("started")
                yield response
                if number == 20:
                    os.kill(ring.pid("processor"), signal.SIGKILL)
            assert starts == 2, "it was not interrupted"

        assert gathered(interrupted()) == calm
