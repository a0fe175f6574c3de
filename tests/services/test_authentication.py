"""Over real sockets: clients without a token that holds are refused, those with one are its tenant and get what it may
have, files are replaced while streams go on, and nothing that was shown or said is found in a log.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from secrets import token_hex
from typing import Any

import grpc
import jwt
import pytest
import ringline
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.cli.commands.certs import replace_file
from tests.services.secured_ring import SECONDS, USERS, SecuredRing, refusal_of_engine, user_token
from tests.services.uninterrupted_streams import check_streams_uninterrupted

CANARY_TOKEN = "rl-canary-do-not-tell-0123456789"
CANARY = "xylophonic quagga"


def unsigned(**claims: Any) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none', 'kid': 'one'})}.{part(claims)}."


def web_tokens(secured: SecuredRing) -> dict[str, tuple[str, str]]:
    """Tokens that must not be taken, and what is said of them."""
    claims = jwt.decode(secured.web_token(), options={"verify_signature": False})
    stranger = ec.generate_private_key(ec.SECP256R1())
    return {
        "expired": (secured.web_token(age=timedelta(hours=1)), "the token has expired"),
        "audience": (secured.web_token(aud="others"), "the token is for another audience"),
        "issuer": (secured.web_token(iss="https://others.test"), "the token is of another issuer"),
        "endless": (secured.web_token(exp=None), "the token lacks the claim exp"),
        "nobody's": (secured.web_token(sub=None), "the token lacks the claim sub"),
        "nameless": (
            secured.web_token(sub=""),
            "the token's sub is not a tenant: expected 1 to 128 printable characters",
        ),
        "unsigned": (unsigned(**claims), "the token's signature algorithm is not accepted"),
        "stranger's": (
            jwt.encode(claims, stranger, algorithm="ES256", headers={"kid": "one"}),
            "the token's signature is not valid",
        ),
        "unknown key": (
            jwt.encode(claims, stranger, algorithm="ES256", headers={"kid": "two"}),
            "the token is signed with a key that is not known",
        ),
        "symmetric": (
            jwt.encode(claims, "a secret of at least thirty-two bytes", algorithm="HS256", headers={"kid": "one"}),
            "the token's signature algorithm is not accepted",
        ),
        "garbage": ("a.b.c", "the token cannot be read"),
    }


async def refusal(secured: SecuredRing, *metadata: tuple[str, str]) -> tuple[grpc.StatusCode, str]:
    """How a call of each kind is refused; alike."""
    found = set()
    async with grpc.aio.secure_channel(secured.guarded.address, secured.certificates.credentials()) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [
            stub.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata, timeout=SECONDS),
            stub.Tokenize(inference_pb2.TokenizeRequest(text="x"), metadata=metadata, timeout=SECONDS),
            stub.Generate(inference_pb2.GenerateRequest(text="x"), metadata=metadata, timeout=SECONDS).read(),
            stub.Session(metadata=metadata, timeout=SECONDS).read(),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            found.add((caught.value.code(), caught.value.details()))
    assert len(found) == 1
    return found.pop()


async def test_who_shows_nothing_that_holds_is_refused(secured: SecuredRing) -> None:
    code, prefix = grpc.StatusCode.UNAUTHENTICATED, "authorization: "
    blue = user_token("blue")
    assert await refusal(secured) == (code, prefix + "missing: expected 'Bearer' and a token")
    for shown, words in (
        (f"Bearer {CANARY_TOKEN}", "the token is not known"),
        (f"Bearer {secured.service_token}", "the token is not known"),
        (f"Basic {blue}", "malformed: expected 'Bearer' and a token"),
        ("Bearer", "malformed: expected 'Bearer' and a token"),
        (f"Bearer {blue} {blue}", "malformed: expected 'Bearer' and a token"),
    ):
        assert await refusal(secured, ("authorization", shown)) == (code, prefix + words)
    twice = [("authorization", f"Bearer {blue}")] * 2
    assert await refusal(secured, *twice) == (code, prefix + "2 values: expected one")


async def test_web_tokens_that_do_not_hold_are_refused_in_words(secured: SecuredRing) -> None:
    for name, (token, words) in web_tokens(secured).items():
        told = await refusal(secured, ("authorization", f"Bearer {token}"))
        assert told == (grpc.StatusCode.UNAUTHENTICATED, f"authorization: {words}"), name


@contextmanager
def replaced(secured: SecuredRing, name: str, text: str) -> Iterator[None]:
    """Another file in the place of one, for a while."""
    before = (secured.folder / name).read_bytes()
    replace_file(secured.folder / name, text.encode(), 0o600)
    try:
        yield
    finally:
        replace_file(secured.folder / name, before, 0o600)


def tenants_of(secured: SecuredRing, name: str) -> set[object]:
    """Under which tenants the guarded processor logged requests that clients called ``name``."""
    return {line["tenant"] for line in secured.guarded.records() if line.get("client_request_id") == name}


async def test_a_tenant_is_whom_the_token_says_whatever_the_metadata_says(secured: SecuredRing) -> None:
    pretending = {"metadata": {"x-ringline-tenant": "red"}}
    for tenant, token in (("blue", user_token("blue")), ("web", secured.web_token("web"))):
        async with secured.client(token, **pretending) as client:
            assert (await client.models())[0].max_model_len > 0
            await client.generate("Once", max_tokens=2, request_id=f"of-{tenant}")
        assert tenants_of(secured, f"of-{tenant}") == {tenant}


async def test_prefixes_are_found_by_the_tenant_that_brought_them_alone(secured: SecuredRing) -> None:
    prompt = list(range(100, 164))
    async with secured.client(user_token("blue")) as blue, secured.client(secured.web_token("web")) as web:
        await blue.generate(token_ids=prompt, max_tokens=1)
        cached = [
            (await client.generate(token_ids=prompt, max_tokens=1)).usage.cached_tokens for client in (blue, web, web)
        ]
    assert cached[0] > 0
    assert cached[1] == 0
    assert cached[2] > 0


async def test_a_file_of_tokens_is_replaced_while_streams_go_on(secured: SecuredRing) -> None:
    shown = [user_token("blue")]
    others = {user_token(tenant): tenant for tenant in USERS if tenant != "blue"}
    try:
        async with secured.client(lambda: shown[0]) as client:

            async def replace() -> None:
                new = f"{shown[0]}-new"
                secured.write_tokens({**others, new: "blue"})
                # On the stream that stands nothing more begins with the old token; it ends in its own time.
                with pytest.raises(ringline.PermissionDenied, match="the token is not known") as caught:
                    await client.generate("Once", max_tokens=1)
                assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
                shown[0] = new
                await client.generate("Once", max_tokens=1, request_id="with-the-new-token")

            await check_streams_uninterrupted(secured, client, replace)
    finally:
        secured.write_tokens({user_token(tenant): tenant for tenant in USERS})
    assert tenants_of(secured, "with-the-new-token") == {"blue"}


async def test_the_services_token_is_replaced_while_streams_go_on(secured: SecuredRing) -> None:
    """As the guide says: the new one below the old one, then above it, then alone."""
    file, operator = secured.folder / "service-token", secured.certificates.credentials("operator")
    first = secured.service_token
    try:
        async with secured.client(user_token("blue")) as client:

            async def replace() -> None:
                old, new = secured.service_token, token_hex(32)
                for lines in ([old, new], [new, old], [new]):
                    replace_file(file, "\n".join(lines).encode(), 0o600)
                    for token in (old, new):
                        told = await asyncio.to_thread(refusal_of_engine, secured, operator, token)
                        assert told is (None if token in lines else grpc.StatusCode.UNAUTHENTICATED)
                secured.service_token = new

            await check_streams_uninterrupted(secured, client, replace)
    finally:
        secured.service_token = first
        replace_file(file, first.encode(), 0o600)


async def test_a_file_that_cannot_be_used_is_said_and_not_taken(secured: SecuredRing) -> None:
    """What the file said before goes on, of each kind of file."""
    broken = {
        "--auth-token-file": ("tokens", "blue sha256:broken"),
        "--auth-jwks-file": ("jwks.json", '{"keys": []}'),
        "--tenants-file": ("tenants.toml", "[tenants.narrow]\nmax_concurrent = 1"),
    }
    for flag, (name, text) in broken.items():
        with replaced(secured, name, text):
            for token in (user_token("blue"), secured.web_token()):
                async with secured.client(token) as client:
                    await client.generate("Once", max_tokens=1)
            async with secured.client(user_token("elsewhere")) as client:
                assert await client.models() == (), "its policy holds"
            unknown = await refusal(secured, ("authorization", f"Bearer {CANARY_TOKEN}"))
            assert unknown == (grpc.StatusCode.UNAUTHENTICATED, "authorization: the token is not known")
        told = [str(line["reason"]) for line in secured.guarded.records() if "not usable" in str(line["event"])]
        assert [reason.split(":")[0] for reason in told].count(flag) == 1
        assert text not in told[-1]


async def test_keys_of_web_tokens_are_replaced_in_the_running_process(secured: SecuredRing) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "one", "use": "sig"}
    with replaced(secured, "jwks.json", json.dumps({"keys": [public]})):
        told = await refusal(secured, ("authorization", f"Bearer {secured.web_token()}"))
        assert told == (grpc.StatusCode.UNAUTHENTICATED, "authorization: the token's signature is not valid")
        async with secured.client(replace(secured, signing_key=key).web_token()) as client:
            await client.generate("Once", max_tokens=1)


async def test_a_tenant_has_so_many_requests_at_a_time(secured: SecuredRing) -> None:
    async with secured.client(user_token("narrow")) as client:
        asked = [client.generate("Once upon a time", max_tokens=400, ignore_eos=True) for _ in range(8)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, ringline.Overloaded)]
        assert 1 <= len(refused) < 8
        assert {str(error) for error in refused} == {
            "limit of 1 concurrent requests reached; retry when one of this tenant's has ended"
        }
        assert all(error.retry_after for error in refused)
        assert not [answer for answer in answers if isinstance(answer, BaseException) and answer not in refused]
        await client.generate("Once", max_tokens=1)


async def test_a_tenant_has_so_many_tokens_a_minute(secured: SecuredRing) -> None:
    async with secured.client(user_token("slow")) as client:
        await client.generate(token_ids=[5, 6, 7, 8], max_tokens=60, ignore_eos=True)
        with pytest.raises(ringline.Overloaded, match="rate limit of 12 tokens per minute reached") as caught:
            await client.generate("Once", max_tokens=1)
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 60


async def test_a_tenant_has_so_many_tokens_waiting(secured: SecuredRing) -> None:
    async with secured.client(user_token("short")) as client:
        with pytest.raises(ringline.Overloaded, match=r"limit of 3 queued prompt tokens exceeded: .* this one has 4;"):
            await client.generate(token_ids=[5, 6, 7, 8], max_tokens=1)
        await client.generate(token_ids=[5, 6, 7], max_tokens=1)


async def test_a_tenant_may_use_its_models_alone(secured: SecuredRing) -> None:
    async with secured.client(user_token("blue")) as client:
        served = await client.models()
    async with secured.client(user_token("elsewhere")) as client:
        assert await client.models() == ()
        for call in (client.generate("Once", max_tokens=1), client.tokenize("Once")):
            with pytest.raises(ringline.PermissionDenied, match="model: this tenant may not use") as caught:
                await call
            assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
            assert served[0].name not in str(caught.value), "it is not told what it may not list"


async def test_what_was_said_and_shown_is_in_no_log_and_no_error(secured: SecuredRing) -> None:
    """At the level debug."""
    told = [str(await refusal(secured, ("authorization", f"Bearer {CANARY_TOKEN}")))]
    blue = user_token("blue")
    async with secured.client(blue) as client:
        message: ringline.Message = {"role": "user", "content": CANARY}
        await client.generate(CANARY, max_tokens=4, stop=CANARY, bad_words=CANARY, cache_salt=CANARY)
        await client.generate(messages=[message], max_tokens=4)
        await client.tokenize(CANARY)
        wrong: list[dict[str, Any]] = [
            {"prompt": CANARY, "max_tokens": 10**6, "min_tokens": 10**7},
            {"prompt": CANARY * 3000},
            {"prompt": CANARY, "stop": [CANARY * 2000]},
            {"prompt": CANARY, "bad_words": [CANARY * 200]},
            {"messages": [{"role": CANARY, "content": CANARY}, message]},
            {"messages": [message], "tools": [{"name": CANARY}], "template_name": "none"},
            {"messages": [{**message, "tool_calls": [{"name": "f", "arguments": CANARY}]}]},
        ]
        for request in wrong:
            try:
                await client.generate(request.pop("prompt", None), **request)
            except ringline.RingError as error:
                told.append(str(error))
    assert len(told) > 4
    logs = "".join(
        service.log.read_text() for service in (secured.engine, secured.detokenizer, secured.processor, secured.guarded)
    )
    assert '"level": "debug"' in logs
    secrets = (CANARY_TOKEN, blue, secured.service_token, "xylophonic", "quagga")
    assert [secret for secret in secrets if secret in logs] == []
    assert [(secret, text) for text in told for secret in secrets[:3] if secret in text] == []
