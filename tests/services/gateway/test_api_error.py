"""Each documented error by status, type, param and code; docs/reference/openai.md shows the same."""

import re
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from ringline.connect_errors import not_reached
from ringline.errors import from_status

from services.gateway.http.api_error import ApiError, api_error_from
from services.ring.errors import USUAL_REASONS, Code, Reason
from tests.clients.scripted_server import status
from tests.services.gateway.http_harness import Running

DOCUMENTED = Path(__file__).parents[3] / "docs" / "reference" / "openai.md"
ROW = r"^\| (\d+) \| `(\w+)` \| `(\w+)` \|"
CODES = {code.value[0]: code for code in grpc.StatusCode}
CASES = {
    (Code.INVALID_ARGUMENT, Reason.INVALID_FIELD): (400, "invalid_request_error", "invalid_field", True),
    (Code.INVALID_ARGUMENT, Reason.TOO_LARGE): (413, "invalid_request_error", "too_large", True),
    (Code.RESOURCE_EXHAUSTED, Reason.TOO_LARGE): (413, "invalid_request_error", "too_large", True),
    (Code.FAILED_PRECONDITION, Reason.CAPABILITY_MISSING): (400, "invalid_request_error", "capability_missing", True),
    (Code.FAILED_PRECONDITION, Reason.UNSUPPORTED): (400, "invalid_request_error", "unsupported", True),
    (Code.UNIMPLEMENTED, Reason.UNSUPPORTED): (501, "server_error", "unsupported", True),
    (Code.FAILED_PRECONDITION, Reason.VERSION_MISMATCH): (502, "server_error", "version_mismatch", True),
    (Code.NOT_FOUND, Reason.MODEL_NOT_FOUND): (404, "invalid_request_error", "model_not_found", True),
    (Code.NOT_FOUND, Reason.UNKNOWN_REQUEST): (404, "invalid_request_error", "unknown_request", True),
    (Code.UNAUTHENTICATED, Reason.UNAUTHENTICATED): (401, "authentication_error", "invalid_api_key", True),
    (Code.PERMISSION_DENIED, Reason.PERMISSION_DENIED): (403, "permission_error", "permission_denied", True),
    (Code.ALREADY_EXISTS, Reason.STALE_EPOCH): (409, "invalid_request_error", "stale_epoch", True),
    (Code.RESOURCE_EXHAUSTED, Reason.RATE_LIMIT): (429, "rate_limit_error", "rate_limit_exceeded", False),
    (Code.RESOURCE_EXHAUSTED, Reason.QUOTA): (429, "rate_limit_error", "quota", False),
    (Code.RESOURCE_EXHAUSTED, Reason.OVERLOAD): (429, "rate_limit_error", "overload", False),
    (Code.RESOURCE_EXHAUSTED, Reason.STALLED): (429, "rate_limit_error", "stalled", False),
    (Code.UNAVAILABLE, Reason.DRAINING): (503, "server_error", "draining", False),
    (Code.UNAVAILABLE, Reason.NOT_READY): (503, "server_error", "not_ready", False),
    (Code.UNAVAILABLE, Reason.NO_ROUTE): (503, "server_error", "no_route", False),
    (Code.UNAVAILABLE, Reason.MODEL_GONE): (503, "server_error", "model_gone", False),
    (Code.FAILED_PRECONDITION, Reason.MEDIA_MISSING): (502, "server_error", "media_missing", True),
    (Code.NOT_FOUND, Reason.ADAPTER_NOT_FOUND): (404, "invalid_request_error", "adapter_not_found", True),
    (Code.UNAVAILABLE, Reason.ADAPTER_GONE): (503, "server_error", "adapter_gone", False),
    (Code.ALREADY_EXISTS, Reason.ADAPTER_EXISTS): (400, "invalid_request_error", "adapter_exists", True),
    (Code.UNAVAILABLE, Reason.UNKNOWN_PEER): (503, "server_error", "unknown_peer", False),
    (Code.ABORTED, Reason.SUPERSEDED): (503, "server_error", "superseded", False),
    (Code.CANCELLED, Reason.CANCELLED): (503, "server_error", "cancelled", False),
    (Code.DEADLINE_EXCEEDED, Reason.DEADLINE): (504, "timeout_error", "timeout", True),
    (Code.INTERNAL, Reason.POISON): (500, "server_error", "poison", True),
    (Code.INTERNAL, Reason.INTERNAL): (500, "server_error", "internal", True),
    (Code.UNKNOWN, Reason.INTERNAL): (500, "server_error", "internal", True),
}
"""By code and reason: status, type, code, and whether no ``retry-after`` comes with it."""
REFUSED_CALLERS = {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED}
FINAL = {Reason.VERSION_MISMATCH, Reason.DEADLINE, Reason.POISON, *REFUSED_CALLERS}
"""And what is not implemented."""


def error_of(code: Code, reason: Reason | None, *details, message: str = "why") -> ApiError:
    info = [error_details_pb2.ErrorInfo(domain="ringline", reason=reason.name)] if reason else []
    return api_error_from(from_status(status(CODES[code], message, *info, *details)), lambda field: f"my_{field}")


@pytest.mark.parametrize(("given", "expected"), CASES.items(), ids=[f"{c.name}-{r.name}" for c, r in CASES])
def test_each_error_of_the_ring(given, expected) -> None:
    error = error_of(*given)
    assert (int(error.status), error.type, error.code, "retry-after" not in error.headers) == expected
    assert (error.headers.get("x-should-retry") == "false") == (given[1] in FINAL or given[0] is Code.UNIMPLEMENTED)
    assert error.message == "why"
    assert error.param == ("model" if error.code == "model_not_found" else None)


def test_what_a_program_is_told_to_do_is_not_told_over_http() -> None:
    error = api_error_from(not_reached({"127.0.0.1:1": "Connection refused"}), str)
    assert (error.status, error.code, error.message) == (
        503,
        "not_ready",
        "127.0.0.1:1 is not available: Connection refused",
    )


def test_every_code_and_reason_is_a_case() -> None:
    assert {code for code, _ in CASES} == set(Code)
    assert {reason for _, reason in CASES} == set(Reason)
    assert set(USUAL_REASONS.items()) <= set(CASES)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_status_of_another_server_has_no_reason(code) -> None:
    error = api_error_from(from_status(status(code, "why")), str)
    assert 400 <= error.status < 600
    assert error.code in {code for _, _, code in re.findall(ROW, DOCUMENTED.read_text(), re.MULTILINE)}


def test_the_documented_table_is_what_happens() -> None:
    rows = re.findall(ROW, DOCUMENTED.read_text(), re.MULTILINE)
    documented = {(int(status), kind, code) for status, kind, code in rows}
    assert {case[:3] for case in CASES.values()} <= documented
    assert len(documented) == len(rows)


def test_when_to_come_back() -> None:
    error = error_of(
        Code.RESOURCE_EXHAUSTED, Reason.OVERLOAD, error_details_pb2.RetryInfo(retry_delay=Duration(nanos=1_500_000))
    )
    assert error.headers == {"retry-after": "1", "retry-after-ms": "2"}
    error = error_of(
        Code.RESOURCE_EXHAUSTED, Reason.QUOTA, error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=1))
    )
    assert error.headers == {"retry-after": "3", "retry-after-ms": "2001"}
    assert error_of(Code.UNAVAILABLE, Reason.NO_ROUTE).headers == {"retry-after": "1", "retry-after-ms": "1000"}


@pytest.mark.parametrize(
    ("reason", "field", "problem", "context"),
    [
        (
            Reason.INVALID_FIELD,
            "prompt",
            "prompt: 64 tokens are too long: expected at most 63 (truncate_prompt_tokens keeps the last ones)",
            64,
        ),
        (Reason.INVALID_FIELD, "prompt", "prompt: 90000 bytes: expected at most 66560, for a context of 64 tokens", 64),
        (Reason.TOO_LARGE, "message", "message: 400000 bytes: expected at most 395264, for a context of 64 tokens", 64),
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_words_that_clients_look_for(reason, field, problem, context) -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field)
    details = error_details_pb2.BadRequest(field_violations=[violation])
    error = error_of(Code.INVALID_ARGUMENT, reason, details, message=problem)
    param = "my_prompt" if field == "prompt" else None
    assert (error.status, error.param, error.code) == (400, param, "context_length_exceeded")
    assert error.message.startswith(f"{param or 'the request'}: ")
    assert error.message.endswith(f"maximum context length is {context} tokens.")


LONG = "x" * 5000
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"response_format": {"type": LONG}}),
        ("chat/completions", {"structured_outputs": {"structural_tag": LONG}}),
        ("chat/completions", {"tools": [TOOL], "tool_choice": {"type": LONG}}),
        ("chat/completions", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": LONG}}}),
        ("chat/completions", {"tools": [{"type": LONG}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
        ("chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{"type": LONG}]}]}),
        ("chat/completions", {"logit_bias": {LONG: 1}}),
        ("chat/completions", {"format": LONG}),
        ("responses", {"input": [{"type": LONG}]}),
        ("responses", {"input": [{"role": LONG, "content": "x"}]}),
        ("responses", {"text": {"format": {"type": LONG}}}),
        ("responses", {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": LONG}}),
        ("messages", {"messages": [{"role": LONG, "content": "x"}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
        ("messages", {"tool_choice": {"type": LONG}}),
        ("messages", {"output_config": {"format": {"type": LONG}}}),
        ("completions", {"suffix": LONG}),
    ],
)
async def test_no_error_repeats_a_long_value(gateway: Running, path: str, body: dict[str, object]) -> None:
    whole = {"max_tokens": 5} | {"prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}]} | body
    reply = await gateway.ask("POST", f"/v1/{path}", whole)
    assert reply.status == 400
    assert len(reply.body) < 1000
