"""Requests for vectors and scores round a ring: whatever is lost, each input is computed until it has its result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from structlog.testing import capture_logs

from services.common.rpc.shared_messages import status_from_proto
from services.processor import pooled_output
from services.processor.suitability import embeds
from services.ring.errors import Code, Status
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import Ring, ask
from tests.services.ring.ring_simulation import VECTORS

TEXTS = ["a", "bc", "abc", "cab", "b", "cc", "ab", "aaa"]


@pytest.fixture
def pools() -> Iterator[Ring]:
    """Two engines that make vectors, and nothing else."""
    with capture_logs():
        yield Ring([], [], pooling=["vectors-0", "vectors-1"])


def embed(*texts: str, **fields: object) -> inference_pb2.EmbedRequest:
    inputs = [inference_pb2.PoolingInput(text=text) for text in texts]
    return inference_pb2.EmbedRequest(request_id="r", inputs=inputs, **fields)  # type: ignore[arg-type]


def vector(text: str) -> bytes:
    return VECTORS.row_of(VECTORS.tokenizer.encode(text))


def answer(ring: Ring, kind: str = "embedded") -> inference_pb2.GenerateResponse:
    """The only response that the client gets."""
    ring.client_reads()
    (response,) = ring.received
    assert response.WhichOneof("event") == kind
    assert (response.request_id, response.in_reply_to) == ("r", 1 if kind == "refused" else 0)
    return response


def refusal(ring: Ring) -> Status:
    return status_from_proto(answer(ring, "refused").refused.status)


def test_a_processor_and_an_engine_alone_answer_with_the_vectors_in_order(pools: Ring) -> None:
    call = pools.pool(embed(*TEXTS))
    assert call.route is not None
    assert call.route.detokenizer is None
    pools.settle()
    embedded = answer(pools).embedded
    assert embedded.values == b"".join(map(vector, TEXTS))
    assert (embedded.dimensions, list(embedded.counts)) == (2, [])
    report = embedded.report
    assert list(report.input_tokens) == [len(text) for text in TEXTS]
    assert report.usage == inference_pb2.Usage(prompt_tokens=sum(map(len, TEXTS)), cached_tokens=len(TEXTS))
    assert (report.model, report.model_digest, report.numerics) == ("vectors", "vectors", "numerics")
    assert pools.quiet


def test_each_token_has_a_row_of_its_own(pools: Ring) -> None:
    pools.pool(embed("abc", "a", per_token=True))
    pools.settle()
    embedded = answer(pools).embedded
    rows = [VECTORS.row_of(VECTORS.tokenizer.encode(text), i) for text in ("abc", "a") for i in range(len(text))]
    assert (embedded.values, list(embedded.counts)) == (b"".join(rows), [3, 1])


def test_a_lost_engine_leaves_its_results_and_another_computes_the_rest(pools: Ring) -> None:
    call = pools.pool(embed(*TEXTS))
    assert call.route is not None
    first = call.route.engine
    pools.flow(tokens=0)
    pools.flow(tokens=3)
    assert call.delivery.num_unfinished == len(TEXTS) - 3
    pools.kill_engine(first.name)
    assert call.route.engine != first
    (sent,) = [
        command.submit
        for data in pools.stream(call.route.engine.name).commands
        for command in engine_pb2.AttachRequest.FromString(data).commands
        if command.HasField("submit")
    ]
    assert [each.choice for each in sent.pooling.inputs] == [3, 4, 5, 6, 7]
    assert (sent.epoch, sent.deliver_to) == (2, "")
    pools.heal()
    pools.settle()
    embedded = answer(pools).embedded
    assert embedded.values == b"".join(map(vector, TEXTS))
    assert embedded.report.usage.cached_tokens <= embedded.report.usage.prompt_tokens
    assert pools.quiet


def test_results_of_an_engine_that_lost_the_request_are_dropped(pools: Ring) -> None:
    call = pools.pool(embed("a", "b"))
    assert call.route is not None
    stale = engine_pb2.Finished(request_id=call.request_id, epoch=0, choice=0, finish_reason="FINISH_REASON_STOP")
    stale.pooled.values = bytes(8)
    pools.pooled_output.receive(call.route.engine, engine_pb2.StepOutputs(finished=[stale]))
    assert call.delivery.num_unfinished == 2
    pools.settle()
    assert answer(pools).embedded.values == vector("a") + vector("b")


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ({"finish_reason": "FINISH_REASON_STOP"}, Code.INTERNAL, "a result of 0 bytes: expected 8"),
        ({"finish_reason": "FINISH_REASON_LENGTH"}, Code.INTERNAL, "a result of 0 bytes"),
        (
            {"finish_reason": "FINISH_REASON_STOP", "pooled": {"values": bytes(12), "rows": 1}},
            Code.INTERNAL,
            "12 bytes",
        ),
        (
            {"finish_reason": "FINISH_REASON_ERROR", "error": {"code": int(Code.INTERNAL), "message": "NaN"}},
            Code.INTERNAL,
            "inputs[1]: NaN",
        ),
        ({"finish_reason": "FINISH_REASON_DEADLINE"}, Code.DEADLINE_EXCEEDED, "1 of its 3 inputs were computed"),
        ({"finish_reason": "FINISH_REASON_CANCELLED"}, Code.CANCELLED, "cancelled"),
    ],
)
def test_an_input_that_fails_ends_its_request_and_is_named(
    pools: Ring, end: dict[str, object], code: Code, message: str
) -> None:
    call = pools.pool(embed("a", "b", "c"))
    assert call.route is not None
    failed = engine_pb2.Finished(request_id=call.request_id, epoch=1, choice=1, **end)  # type: ignore[arg-type]
    pools.pooled_output.receive(call.route.engine, engine_pb2.StepOutputs(finished=[failed]))
    status = refusal(pools)
    assert status.code is code
    assert message in status.message
    pools.settle()
    assert pools.quiet


@pytest.mark.parametrize(
    ("reason", "code"), [(FinishReason.CANCELLED, Code.CANCELLED), (FinishReason.DEADLINE, Code.DEADLINE_EXCEEDED)]
)
def test_a_request_that_is_given_up_has_no_answer_and_its_engine_forgets_it(
    pools: Ring, reason: FinishReason, code: Code
) -> None:
    call = pools.pool(embed(*TEXTS))
    pools.flow(tokens=0)
    pools.flow(tokens=2)
    pools.in_flight.end(call, reason)
    assert refusal(pools).code is code
    pools.settle()
    assert pools.quiet
    assert len(pools.received) == 1


async def test_a_large_answer_is_composed_aside_and_may_still_be_cancelled(
    pools: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_output, "SMALL_BYTES", 0)
    pools.pool(embed("a", "b"))
    pools.settle(3)
    pools.client_reads()
    assert not pools.received
    while not pools.received:
        await asyncio.sleep(0.001)
        pools.client_reads()
    assert answer(pools).embedded.values == vector("a") + vector("b")
    pools.received.clear()
    cancelled = pools.pool(embed("a", "b"))
    pools.settle(3)
    pools.in_flight.end(cancelled, FinishReason.CANCELLED)
    assert refusal(pools).code is Code.CANCELLED
    await asyncio.sleep(0.01)
    pools.client_reads()
    assert len(pools.received) == 1
    assert pools.quiet


def test_vectors_are_compared_by_their_cosine_each_document_with_its_query(pools: Ring) -> None:
    inputs = {text: inference_pb2.PoolingInput(text=text) for text in ("a", "abc")}
    pools.pool(
        inference_pb2.ScoreRequest(
            request_id="r", queries=[inputs["a"], inputs["abc"]], documents=[inputs["abc"], inputs["abc"]]
        )
    )
    pools.settle()
    scored = answer(pools, "scored").scored
    assert scored.scores[1] == pytest.approx(1.0)
    assert scored.scores[0] < 1.0
    assert list(scored.report.input_tokens) == [4, 6]
    assert scored.report.usage.prompt_tokens == 10


def test_models_of_both_kinds_are_chosen_by_what_is_asked() -> None:
    with capture_logs():
        ring = Ring(["engine-0"], ["detokenizer-0"], pooling=["vectors-0"])
        text, vectors = ring.ask(ask(name="t")), ring.pool(embed("a"))
        assert text.resolved.model.model == "m"
        assert vectors.resolved.model.model == "vectors"
        ring.settle()
        kinds = [response.WhichOneof("event") for response in ring.received if response.WhichOneof("event") != "delta"]
        assert sorted(filter(None, kinds)) == ["admitted", "choice_finished", "embedded", "request_finished", "started"]
        assert ring.quiet
        ring.kill_engine("vectors-0")
        # Its model is known, and its engine away: a request waits, rather than be told that it does not exist.
        assert ring.models.choose("vectors", suits=embeds) == (None, None)
        assert ring.models.choose("", suits=embeds) == (None, None)
        _, refused = ring.models.choose("stranger")
        assert refused is not None
        assert refused.status.code is Code.NOT_FOUND


def test_an_engine_whose_link_was_cut_forgets_what_went_elsewhere(pools: Ring) -> None:
    call = pools.pool(embed(*TEXTS))
    assert call.route is not None
    first = call.route.engine.name
    pools.flow(tokens=0)
    pools.detach(pools.stream(first))
    assert call.route.engine.name != first
    pools.heal()  # the engine keeps what is delivered to whoever submitted it
    pools.settle()
    assert answer(pools).embedded.values == b"".join(map(vector, TEXTS))
    assert pools.quiet
