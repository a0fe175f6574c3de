"""What gRPC-Web and Connect look like on the wire, byte for byte, and what damaged requests are told."""

from __future__ import annotations

import base64
import json

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from ringline.errors import InvalidRequest, Overloaded, invalid
from ringline.inference.v1 import inference_pb2 as pb

from services.gateway.rpc import connect, grpc_web
from services.gateway.rpc.envelope import MAX_FIELDS, MAX_JSON_BYTES, decode, enclose, enclosed
from services.gateway.rpc.status import status_of


def overloaded() -> status_pb2.Status:
    error = Overloaded("too many: é 100%\n")
    error.reason, error.retry_after = "RATE_LIMIT", 1.5
    return status_of(error)


def test_messages_and_trailers_of_grpc_web() -> None:
    assert grpc_web.message_envelope(b"abc", text=False) == b"\x00\x00\x00\x00\x03abc"
    assert grpc_web.message_envelope(b"abc", text=True) == base64.b64encode(b"\x00\x00\x00\x00\x03abc")
    assert grpc_web.end_envelope(status_pb2.Status(), text=False) == (
        b"\x80\x00\x00\x00\x20grpc-status: 0\r\ngrpc-message: \r\n"
    )
    end = grpc_web.end_envelope(overloaded(), text=False)
    assert end[0] == 0x80
    assert int.from_bytes(end[1:5], "big") == len(end) - 5
    trailers = dict(line.split(": ", 1) for line in end[5:].decode().splitlines())
    assert (trailers["grpc-status"], trailers["grpc-message"]) == ("8", "too many: %C3%A9 100%25%0A")
    details = trailers["grpc-status-details-bin"]
    assert status_pb2.Status.FromString(base64.b64decode(details + "=" * (-len(details) % 4))) == overloaded()


def test_ends_and_errors_of_connect() -> None:
    assert connect.end_envelope(status_pb2.Status()) == b"\x02\x00\x00\x00\x02{}"
    http_status, body = connect.unary_error(overloaded())
    error = json.loads(body)
    assert (http_status, error["code"], error["message"]) == (429, "resource_exhausted", "too many: é 100%\n")
    retry = error_details_pb2.RetryInfo.FromString(base64.b64decode(error["details"][1]["value"] + "=="))
    assert [detail["type"] for detail in error["details"]] == ["google.rpc.ErrorInfo", "google.rpc.RetryInfo"]
    assert retry.retry_delay.ToMilliseconds() == 1500
    assert json.loads(connect.end_envelope(overloaded())[5:]) == {"error": error}
    expected = {
        "CANCELLED": (499, "canceled"),
        "UNIMPLEMENTED": (501, "unimplemented"),
        "DATA_LOSS": (500, "data_loss"),
    }
    for code, shown in expected.items():
        http_status, body = connect.unary_error(status_pb2.Status(code=grpc.StatusCode[code].value[0]))
        assert (http_status, json.loads(body)["code"]) == shown


def test_errors_name_their_field() -> None:
    status = status_of(invalid("stopping.max_tokens", "0 is too few"))
    (detail,) = status.details
    violations = error_details_pb2.BadRequest()
    assert detail.Unpack(violations)
    (violation,) = violations.field_violations
    assert (violation.field, violation.description) == ("stopping.max_tokens", "0 is too few")
    assert (status.code, status.message) == (3, "stopping.max_tokens: 0 is too few")


def test_timeouts() -> None:
    shown = {"1H": 3600, "2M": 120, "3S": 3, "250m": 0.25, "5u": 5e-6, "7n": 7e-9}
    assert {given: grpc_web.timeout_of({"grpc-timeout": given}) for given in shown} == pytest.approx(shown)
    assert connect.timeout_of({"connect-timeout-ms": "1500"}) == 1.5
    assert grpc_web.timeout_of({}) is connect.timeout_of({}) is None
    for timeout in ("", "1", "123456789S", "-1S", "1 S", "1.5S", "١S"):
        with pytest.raises(InvalidRequest, match="grpc-timeout"):
            grpc_web.timeout_of({"grpc-timeout": timeout})
    for timeout in ("", "12345678901", "-1", "1.5", "٣"):
        with pytest.raises(InvalidRequest, match="connect-timeout-ms"):
            connect.timeout_of({"connect-timeout-ms": timeout})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "expected one message"),
        (b"\x00\x00\x00\x00", "expected one message"),
        (enclose(1, b"x"), "compressed messages are not read"),
        (enclose(2, b""), "unknown flags 2"),
        (enclose(0, b"abc")[:-1], "2 bytes: expected one message, of 3 bytes"),
        (enclose(0, b"abc") * 2, "11 bytes: expected one message, of 3 bytes"),
    ],
)
def test_bodies_that_are_not_one_message(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        enclosed(body)


@pytest.mark.parametrize(
    ("body", "problem"), [(b"AA=A", "base64"), (b"====", "base64"), (b"AA*=", "base64"), (b"AA==" * 2000, "more than")]
)
def test_base64_that_is_none_or_has_too_many_parts_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        grpc_web.request_data(body, text=True)


def test_base64_comes_in_parts() -> None:
    frame = enclose(0, b"hello")
    parts = base64.b64encode(frame[:4]) + base64.b64encode(frame[4:6]) + base64.b64encode(frame[6:])
    assert grpc_web.request_data(parts, text=True) == b"hello"
    for damaged in (b"AAAA!", b"AAA", "é".encode(), b"==", b"AA==" * 2000):
        with pytest.raises(InvalidRequest, match="message"):
            grpc_web.request_data(damaged, text=True)


def test_messages_that_cannot_be_read() -> None:
    request = decode(pb.TokenizeRequest, b'{"text": "a", "addSpecialTokens": false, "unknown": 1}', json=True)
    assert (request.text, request.HasField("add_special_tokens")) == ("a", True)
    deep = b'{"chat": {"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}}"
    for data in (b"", b"[]", b"{", b'{"text": 1}', b'{"text": "\xff"}', deep, b'{"text": "\\ud800"}'):
        with pytest.raises(InvalidRequest, match="cannot be read"):
            decode(pb.TokenizeRequest, data, json=True)
    with pytest.raises(InvalidRequest, match="bytes of JSON: expected at most"):
        decode(pb.TokenizeRequest, b" " * MAX_JSON_BYTES + b"{}", json=True)
    with pytest.raises(InvalidRequest, match="cannot be read as ringline"):
        decode(pb.TokenizeRequest, b"\x12\x05ab", json=False)
    many = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage()] * (MAX_FIELDS + 1)))
    with pytest.raises(InvalidRequest, match="messages"):
        decode(pb.GenerateRequest, many.SerializeToString(), json=False)
    ids = b'{"tokenIds": {"ids": [%b]}}'
    assert decode(pb.GenerateRequest, ids % b",".join([b"1"] * (MAX_FIELDS - 2)), json=True).token_ids.ids
    commas = json.dumps({"text": "," * 2 * MAX_FIELDS}).encode()
    assert decode(pb.TokenizeRequest, commas, json=True).text
    with pytest.raises(InvalidRequest, match="too many fields: expected at most"):
        decode(pb.GenerateRequest, ids % b",".join([b"1"] * 2 * MAX_FIELDS), json=True)
    with pytest.raises(InvalidRequest, match="too many fields"):
        decode(pb.GenerateRequest, b"{" + b"," * MAX_FIELDS, json=True)
