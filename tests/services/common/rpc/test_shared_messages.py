"""Statuses and log probabilities come out of protobuf as they went in."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import error_pb2, output_pb2

from services.common.rpc.shared_messages import (
    read_end,
    read_logprobs,
    status_from_proto,
    status_to_proto,
    write_logprobs,
)
from services.ring.errors import Code, Reason, Status
from services.ring.events import FinishReason
from tests.services.ring.token_logprobs import TokenLogprob, packed, unpacked

floats = st.floats(max_value=0, width=32, allow_nan=False)
ids = st.integers(0, 2**32 - 1)


@given(
    st.builds(
        Status,
        st.sampled_from(Code),
        st.text(),
        st.none() | st.integers(0, 2**40),
        st.none() | st.sampled_from(Reason),
        st.none() | st.text(min_size=1),
    )
)
def test_statuses(status: Status) -> None:
    data = status_to_proto(status).SerializeToString()
    back = status_from_proto(status_pb2.Status.FromString(data))
    assert (back.code, back.message, back.retry_after_ms, back.reason, back.field) == (
        status.code,
        status.message,
        status.retry_after_ms,
        status.reason,
        status.field,
    )


def test_an_unknown_reason_reads_as_the_usual_one_of_its_code() -> None:
    message = status_pb2.Status(code=int(Code.UNAVAILABLE))
    message.details.add().Pack(error_details_pb2.ErrorInfo(reason="ECLIPSE", domain="ringline"))
    assert status_from_proto(message).reason is Reason.NOT_READY


def test_reasons_are_those_of_the_contract() -> None:
    names = {f"ERROR_REASON_{reason.name}": int(reason) for reason in Reason}
    assert {"ERROR_REASON_UNSPECIFIED": 0, **names} == dict(error_pb2.ErrorReason.items())


def test_an_unknown_finish_reason_is_an_error() -> None:
    end = read_end(engine_pb2.Finished(finish_reason=99))  # type: ignore[arg-type]
    assert end.error is not None
    assert (end.finish_reason, end.error.code) == (FinishReason.ERROR, Code.UNKNOWN)


@pytest.mark.parametrize("code", [0, 17, 99, -1])
def test_a_code_that_the_ring_does_not_use_reads_as_internal(code: int) -> None:
    assert status_from_proto(status_pb2.Status(code=code)).code is Code.INTERNAL


def test_codes_are_those_of_grpc() -> None:
    names = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {code.name: int(code) for code in Code}.items() <= names.items()


@st.composite
def entries(draw: st.DrawFn) -> list[TokenLogprob]:
    """Of consecutive tokens, with equally many alternatives each."""
    k = draw(st.integers(0, 4))
    tops = st.tuples(*[ids] * k), st.tuples(*[floats] * k)
    return draw(st.lists(st.builds(TokenLogprob, floats, ids, *tops), max_size=6))


@given(entries())
def test_log_probabilities(entries: list[TokenLogprob]) -> None:
    message = output_pb2.Logprobs()
    write_logprobs(message, packed(entries))
    assert unpacked(read_logprobs(output_pb2.Logprobs.FromString(message.SerializeToString()))) == entries
