"""Answers of large results: written once, and never read again on their way to the client."""

from __future__ import annotations

from array import array

import pytest
from ringline.inference.v1 import inference_pb2

from services.processor.client_stream import ClientStream
from services.processor.pooling.answers import compose
from services.processor.pooling.plan import AnswerForm, AnswerPlan, PooledAnswer
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import Ring

REPORT = inference_pb2.PoolingReport(usage=inference_pb2.Usage(prompt_tokens=7), input_tokens=[3, 4], model="vectors")


@pytest.mark.parametrize("width", [1, 31, 32, 4096, 2**19])
def test_an_answer_is_what_protobuf_would_write(width: int) -> None:
    results = [bytes(4 * width), b"\1" * (4 * width)]
    plan = AnswerPlan(AnswerForm.VECTORS, ("inputs[0]", "inputs[1]"), array("I", [3, 4]), width)
    found = compose(plan, results, REPORT)
    expected = inference_pb2.EmbedResponse(values=b"".join(results), dimensions=width, report=REPORT)
    assert found == PooledAnswer("embedded", expected.SerializeToString())


def test_labels_are_too() -> None:
    plan = AnswerPlan(AnswerForm.LABELS, ("inputs[0]",), array("I", [2]), 2, per_token=True, labels=("a", "b"))
    found = compose(plan, [bytes(16)], REPORT)
    expected = inference_pb2.ClassifyResponse(values=bytes(16), labels=("a", "b"), counts=[2], report=REPORT)
    assert found == PooledAnswer("classified", expected.SerializeToString())


def test_a_call_gets_its_answer_as_it_was_composed() -> None:
    ring = Ring([], [], pooling=["vectors-0"])
    stream: ClientStream = ring.client
    assert stream.take_answer() is None
    ring.pool(inference_pb2.EmbedRequest(request_id="r", inputs=[inference_pb2.PoolingInput(text="abc")]))
    assert stream.take_answer() is None
    for _ in range(5):
        ring.flow()
    answer = stream.take_answer()
    assert isinstance(answer, PooledAnswer)
    assert inference_pb2.EmbedResponse.FromString(answer.packed).report.usage.prompt_tokens == 3
    assert (stream.take_answer(), stream.num_live, ring.quiet) == (None, 0, True)


def test_a_call_that_ends_otherwise_gets_the_reason() -> None:
    ring = Ring([], [], pooling=["vectors-0"])
    call = ring.pool(inference_pb2.EmbedRequest(request_id="r", inputs=[inference_pb2.PoolingInput(text="abc")]))
    ring.in_flight.end(call, FinishReason.CANCELLED)
    refused = ring.client.take_answer()
    assert isinstance(refused, inference_pb2.Refused)
    assert "cancelled when 0 of its 1 inputs were computed" in refused.status.message


def test_a_session_gets_answers_among_other_responses() -> None:
    ring = Ring([], [], pooling=["vectors-0"])
    stream = ring.client
    for name in ("one", "two", "ended"):
        call = ring.pool(inference_pb2.EmbedRequest(request_id=name, inputs=[inference_pb2.PoolingInput(text=name)]))
    ring.in_flight.end(call, FinishReason.CANCELLED)
    for _ in range(5):
        ring.flow()
    packed = stream.take_packed()
    assert packed is not None
    got = {each.request_id: each for each in inference_pb2.SessionResponse.FromString(packed).responses}
    assert {name: each.WhichOneof("event") for name, each in got.items()} == {
        "one": "embedded",
        "two": "embedded",
        "ended": "refused",
    }
    assert [len(got[name].embedded.values) for name in ("one", "two")] == [8, 8]
    assert (stream.take_packed(), stream.num_live, ring.quiet) == (None, 0, True)
