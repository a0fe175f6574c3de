"""Statuses and log probabilities come out of protobuf as they went in."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from ringline.types.v1 import output_pb2

from services.ring.events import Code, Status
from services.runtime.wire import read_logprobs, status_from_proto, status_to_proto, write_logprobs
from tests.services.ring.scores import Score, packed, scores_of

floats = st.floats(max_value=0, width=32, allow_nan=False)
ids = st.integers(0, 2**32 - 1)


@given(st.builds(Status, st.sampled_from(Code), st.text(), st.none() | st.integers(0, 2**40)))
def test_statuses(status: Status) -> None:
    data = status_to_proto(status).SerializeToString()
    assert status_from_proto(status_pb2.Status.FromString(data)) == status


def test_a_time_to_come_back_is_retry_info() -> None:
    message = status_to_proto(Status(Code.RESOURCE_EXHAUSTED, "full", 1500))
    info = error_details_pb2.RetryInfo()
    assert message.details[0].Unpack(info)
    assert info.retry_delay.ToTimedelta().total_seconds() == 1.5


@pytest.mark.parametrize("code", [0, 2, 16, 99, -1])
def test_a_code_that_the_ring_does_not_use_reads_as_internal(code: int) -> None:
    assert status_from_proto(status_pb2.Status(code=code)).code is Code.INTERNAL


def test_codes_are_those_of_grpc() -> None:
    names = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {code.name: int(code) for code in Code}.items() <= names.items()


@st.composite
def entries(draw: st.DrawFn) -> list[Score]:
    """Of consecutive tokens, with equally many alternatives each."""
    k = draw(st.integers(0, 4))
    tops = st.tuples(*[ids] * k), st.tuples(*[floats] * k)
    return draw(st.lists(st.builds(Score, floats, ids, *tops), max_size=6))


@given(entries())
def test_log_probabilities(entries: list[Score]) -> None:
    message = output_pb2.Logprobs()
    write_logprobs(message, packed(entries))
    assert scores_of(read_logprobs(output_pb2.Logprobs.FromString(message.SerializeToString()))) == entries
