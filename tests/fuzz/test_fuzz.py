"""Mutated messages fail or hang no service, which still tells good messages from bad ones."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import ringline
from google.rpc import status_pb2
from ringline.inference.v1 import inference_pb2

from services.common.links.channels import Endpoint
from tests.chaos.logs import read_logs
from tests.fuzz.rings import KINDS, running
from tests.fuzz.targets import DETOKENIZER, ENGINE, INFERENCE, PATIENCE, fuzzing, statuses_in
from tests.ring import Ring

_INPUTS = {"processor": 150, "engine": 150, "detokenizer": 100}
_REFUSES_EMPTY_MESSAGES = {
    "processor": INFERENCE + "Tokenize",
    "engine": ENGINE + "Attach",
    "detokenizer": DETOKENIZER + "Subscribe",
}


async def _send_empty_message(address: str, method: str) -> grpc.StatusCode:
    async with Endpoint(address).open() as channel:
        call = channel.stream_unary(method)(iter([b""]), timeout=PATIENCE)
        return await call.code()


@pytest.mark.parametrize("service", _INPUTS)
async def test_no_message_fails_a_service(service: str, ring: Ring) -> None:
    asked = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    async with ringline.AsyncClient(ring.address) as client:
        before = await client.generate("Once upon a time", **asked)
        async with fuzzing(ring.addresses, seed=1) as fuzzer:
            await fuzzer.run(service, _INPUTS[service])
        assert fuzzer.failures == []
        assert fuzzer.codes["OK"] > 0
        assert ring.process_lives(service), "the service was restarted"
        code = await _send_empty_message(ring.addresses[service], _REFUSES_EMPTY_MESSAGES[service])
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        after = await client.generate("Once upon a time", **asked)
    assert after.text == before.text


@pytest.mark.wide
@pytest.mark.timeout(300)
async def test_no_message_fails_a_ring_that_makes_vectors(tmp_path: Path) -> None:
    with running("vectors", tmp_path) as ring:
        async with (
            ringline.AsyncClient(ring.address) as client,
            fuzzing(ring.addresses, seed=1, kind="vectors") as fuzzer,
        ):
            before = await KINDS["vectors"].ask(client)
            for service in ("processor", "engine"):
                await fuzzer.run(service, _INPUTS[service])
                assert ring.process_lives(service), "the service was restarted"
            assert fuzzer.failures == []
            assert fuzzer.codes["OK"] > 0
            assert await KINDS["vectors"].ask(client) == before
        assert read_logs([ring.log]).errors == []


def test_statuses_of_requests_are_found_in_frames() -> None:
    end = inference_pb2.ChoiceFinished(error=status_pb2.Status(code=13, message="broken"))
    failed = inference_pb2.GenerateResponse(request_id="f", choice_finished=end)
    frame = inference_pb2.SessionResponse(responses=[inference_pb2.GenerateResponse(), failed])
    assert [status.message for status in statuses_in(frame)] == ["broken"]
