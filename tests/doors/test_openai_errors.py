"""The openai package of Python: its exceptions, its retries, its timeouts."""

from __future__ import annotations

import pytest

from tests.doors.clients import Shown, run_python
from tests.doors.door import Door, running_gateway

pytestmark = pytest.mark.doors

REFUSALS = {
    "wrong key": ("AuthenticationError", 401, None, "invalid_api_key"),
    "model of others": ("PermissionDeniedError", 403, None, None),
    "unknown model": ("NotFoundError", 404, "model", "model_not_found"),
    "temperature": ("BadRequestError", 400, "temperature", None),
    "temperature of a wrong type": ("BadRequestError", 400, "temperature", None),
    "messages of a wrong type": ("BadRequestError", 400, "messages", None),
    "no messages": ("BadRequestError", 400, "messages", None),
    "too long": ("BadRequestError", 400, "messages", "context_length_exceeded"),
    "too large": ("APIStatusError", 413, None, None),
    "schema": ("BadRequestError", 400, "response_format.json_schema.schema", None),
    "streamed": ("NotFoundError", 404, "model", "model_not_found"),
    "unknown path": ("NotFoundError", 404, None, None),
    "images": ("NotFoundError", 404, None, None),
    "no processor": ("InternalServerError", 503, None, None),
}
"""The SDK's exception, its status, param and code (None: any or none)."""


@pytest.fixture(scope="module")
def program(guarded_door: Door, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    with running_gateway(tmp_path_factory.mktemp("nowhere"), "127.0.0.1:1") as nowhere:
        return run_python("openai", "openai_errors", guarded_door.api, f"{nowhere}/v1")


@pytest.mark.parametrize("what", REFUSALS)
def test_refusal(what: str, shown: Shown) -> None:
    refused = shown("refusals")[what]
    assert refused is not None
    kind, status, param, code = REFUSALS[what]
    assert (refused["kind"], refused["status"]) == (kind, status), refused
    assert param is None or refused["param"] == param, refused
    assert code is None or refused["code"] == code, refused
    assert refused["headers"]["x-request-id"]
    assert refused["type"], refused


def test_retry_after_429(shown: Shown) -> None:
    retried = shown("retry_after_429")
    refused = retried["refused"]
    assert (refused["kind"], refused["status"]) == ("RateLimitError", 429)
    assert 1 <= float(refused["headers"]["retry-after"]) <= 2
    assert 0 < float(refused["headers"]["retry-after-ms"]) <= 1000
    assert retried["sent"] > 60
    assert retried["status"] == 200
    assert retried["retries"] >= 1


def test_timeout(shown: Shown, guarded_door: Door) -> None:
    """What the SDK has given up is not computed any further."""
    assert shown("timeout") == "APITimeoutError"
    assert guarded_door.becomes_idle()
