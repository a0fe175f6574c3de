"""Sessions of callers: who keeps one, and who loses it."""

from contextlib import ExitStack

import grpc
import pytest
import ringline
from ringline.errors import PermissionDenied
from starlette.datastructures import Headers

from services.gateway.callers import Callers
from services.gateway.http.api_error import ApiError


def headers(token: str, tenant: str = "") -> Headers:
    return Headers({"authorization": f"Bearer {token}", **({"x-tenant": tenant} if tenant else {})})


@pytest.fixture
async def callers():
    async with ringline.AsyncClient("127.0.0.1:1") as client:
        made = Callers(client, "x-tenant", max_callers=3)
        yield made
        await made.close()
        assert len(made) == 0


def ask(callers: Callers, token: str, *, known: bool = True, tenant: str = "") -> ringline.AsyncClient:
    with callers.serving(headers(token, tenant)) as caller:
        if known:
            caller.answered()
        else:
            error = PermissionDenied("who?")
            error.code = grpc.StatusCode.UNAUTHENTICATED
            caller.failed(error)
        return caller.client


async def test_a_caller_keeps_its_session_and_shares_it_with_nobody(callers: Callers) -> None:
    first = ask(callers, "a")
    assert ask(callers, "a") is first
    assert ask(callers, "a", tenant="t") is not first
    assert ask(callers, "b") is not first
    with callers.serving(Headers({"x-api-key": "a"})) as caller:
        assert caller.client is first, "Anthropic's header says the same"
    assert dict(first._metadata()) == {"authorization": "Bearer a"}


async def test_the_least_recently_used_idle_one_goes(callers: Callers) -> None:
    first, second, third = (ask(callers, token) for token in "abc")
    with callers.serving(headers("a")):
        ask(callers, "c")
        ask(callers, "d")
        assert ask(callers, "a") is first, "it has a request"
    assert ask(callers, "c") is third
    assert ask(callers, "b") is not second


async def test_tokens_that_are_refused_are_forgotten_and_push_nobody_out(callers: Callers) -> None:
    kept = {token: ask(callers, token) for token in "abc"}
    for number in range(100):
        ask(callers, f"guess-{number}", known=False)
        assert len(callers) == 3
    with ExitStack() as busy:
        for number in range(3):
            busy.enter_context(callers.serving(headers(f"slow-{number}")))
        with pytest.raises(ApiError, match="new callers") as refused, callers.serving(headers("one-more")):
            pass
        assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
        assert {token: ask(callers, token) for token in "abc"} == kept
    with callers.serving(headers("one-more")):
        pass


async def test_a_token_that_expired_loses_its_session_when_it_is_idle(callers: Callers) -> None:
    first = ask(callers, "a")
    with callers.serving(headers("a")) as running:
        assert ask(callers, "a", known=False) is first
        assert running.client is first
        assert not first._closed
        assert ask(callers, "a") is not first
    assert ask(callers, "a") is not first
    assert first._closed or len(callers) == 1


@pytest.mark.parametrize("value", ["Bearer", "Bearer ", "bearer "])
async def test_an_empty_key_is_none(callers: Callers, value: str) -> None:
    with callers.serving(Headers({"authorization": value})) as caller:
        assert not caller.client._metadata()
    with callers.serving(Headers({"authorization": value, "x-api-key": "a"})) as caller:
        assert dict(caller.client._metadata()) == {"authorization": "Bearer a"}
