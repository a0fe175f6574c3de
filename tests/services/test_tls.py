"""Over real sockets: whoever is not to be believed is refused with the right code, and certificates are replaced while
streams go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import ringline
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringline.detokenizer.v1 import detokenizer_pb2, detokenizer_pb2_grpc
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.common.rpc.shared_messages import hello_message, status_from_proto
from services.ring.errors import Code, Reason, Status
from services.ring.identity import PeerId
from tests.services.certificate_recorder import CertificateRecorder
from tests.services.in_process import status_of
from tests.services.secured_ring import (
    SECONDS,
    Certificates,
    SecuredRing,
    refusal_of_engine,
    service_on_any_port,
    stop_services,
    user_token,
)
from tests.services.uninterrupted_streams import TOKENS, check_streams_uninterrupted, link_losses


def attach(secured: SecuredRing, certificate: str, name: str) -> Status | None:
    """With what an engine refuses a peer; None if it welcomes it."""
    with grpc.secure_channel(secured.engine.address, secured.certificates.credentials(certificate)) as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        sent = held_open(engine_pb2.AttachRequest(hello=hello_message(PeerId(name, 7))))
        return _refusal(stub.Attach(sent, timeout=SECONDS, metadata=secured.service_metadata))


def subscribe(secured: SecuredRing, certificate: str | None, name: str) -> Status | None:
    """Likewise a detokenizer."""
    with grpc.secure_channel(secured.detokenizer.address, secured.certificates.credentials(certificate)) as channel:
        stub = detokenizer_pb2_grpc.DetokenizerServiceStub(channel)
        request = detokenizer_pb2.SubscribeRequest(hello=hello_message(PeerId(name, 7)))
        return _refusal(stub.Subscribe(request, timeout=SECONDS, metadata=secured.service_metadata))


def _refusal(frames: Any) -> Status | None:
    try:
        assert next(frames).HasField("welcome")
    except grpc.RpcError as error:
        return status_of(error)
    return None


def held_open(*sent: Any) -> Iterator[Any]:
    """What is sent of a stream that is then kept open, until its call is over."""
    yield from sent
    threading.Event().wait(SECONDS)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of an authority that the ring does not believe."""
    certificates = Certificates(tmp_path_factory.mktemp("others"))
    certificates.issue("processor")
    return certificates


def test_every_hop_is_encrypted_and_answers(secured: SecuredRing) -> None:
    with ringline.Client(secured.processor.address, ca=secured.certificates.path("ca"), timeout=SECONDS) as client:
        answer = client.generate("Once upon a time", max_tokens=8, temperature=0)
        assert answer.usage.completion_tokens == 8
        assert len(client.tokenize("Once").token_ids) >= 1


def test_an_engine_lets_in_services_alone(secured: SecuredRing, others: Certificates) -> None:
    ours = secured.certificates
    ours.issue("processor", age=timedelta(hours=2), name="expired")
    unavailable, denied = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED
    assert refusal_of_engine(secured, ours.credentials("operator")) is None
    assert refusal_of_engine(secured, None) is unavailable, "plain text"
    assert refusal_of_engine(secured, ours.credentials()) is unavailable, "no certificate"
    assert refusal_of_engine(secured, ours.credentials("expired")) is unavailable
    assert refusal_of_engine(secured, ours.credentials("client")) is denied, "a user's certificate"
    stranger = grpc.ssl_channel_credentials(
        ours.authority.certificate,
        *((others.folder / name).read_bytes() for name in ("processor-key.pem", "processor.pem")),
    )
    assert refusal_of_engine(secured, stranger) is unavailable, "another authority's certificate"
    assert refusal_of_engine(secured, others.credentials("processor")) is unavailable, "it is not believed itself"


def test_a_detokenizer_lets_in_services_alone(secured: SecuredRing) -> None:
    for certificate, code in (("client", Code.PERMISSION_DENIED), (None, Code.UNAVAILABLE)):
        refusal = subscribe(secured, certificate, "processor-9")
        assert refusal is not None
        assert refusal.code is code


ENGINE = engine_pb2.DESCRIPTOR.services_by_name["EngineService"]
ADAPTERS = {"LoadAdapter", "UnloadAdapter", "ListAdapters"}
ASKED = {"processor": {"GetModel", "GetTokenizer"} | ADAPTERS, "detokenizer": {"GetModel", "GetTokenizer"}}
"""What services ask of an engine, beside attaching to it."""


@pytest.mark.parametrize("role", ["processor", "detokenizer", "operator"])
def test_a_certificate_allows_the_methods_of_its_role_alone(secured: SecuredRing, role: str) -> None:
    allowed, denied = set(), {}
    with grpc.secure_channel(secured.engine.address, secured.certificates.credentials(role)) as channel:
        for method in ENGINE.methods:
            if method.client_streaming or (method.name, role) == ("Drain", "operator"):
                continue
            call = channel.unary_stream(f"/{ENGINE.full_name}/{method.name}")
            try:
                list(call(b"", timeout=SECONDS, metadata=secured.service_metadata))
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                    denied[method.name] = error.details(), status_of(error).reason
                    continue
            allowed.add(method.name)
    if role == "operator":
        assert not denied
    else:
        assert allowed == ASKED[role]
        why = f"the certificate of spiffe://ringline/{role} does not allow /{ENGINE.full_name}/Drain"
        assert denied["Drain"] == (f"{why}: expected the role operator", Reason.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("certificate", "name", "expected"),
    [
        ("processor", "processor", ""),
        ("processor", "processor-9", ""),
        ("processor", "detokenizer-0", "spiffe://ringline/processor does not allow the name 'detokenizer-0'"),
        ("processor", "processors", "expected processor-…"),
        ("detokenizer", "processor-0", "spiffe://ringline/detokenizer does not allow the name 'processor-0'"),
        ("blue", "blue", ""),
        ("operator", "operator-bench-1", ""),
        (
            "blue",
            "processor-0",
            "spiffe://ringline/processor/blue does not allow the name 'processor-0': expected blue",
        ),
    ],
)
def test_a_peer_attaches_under_a_name_of_its_certificate(
    secured: SecuredRing, certificate: str, name: str, expected: str
) -> None:
    secured.certificates.issue("processor", name="blue", peer="blue")
    refusals = [attach(secured, certificate, name)]
    if certificate in ("processor", "blue"):
        refusals.append(subscribe(secured, certificate, name))
    for refusal in refusals:
        if not expected:
            assert refusal is None
        else:
            assert refusal is not None
            assert (refusal.code, refusal.reason) == (Code.PERMISSION_DENIED, Reason.PERMISSION_DENIED)
            assert expected in refusal.message


@pytest.mark.parametrize(
    ("role", "code"), [("detokenizer", Code.PERMISSION_DENIED), ("operator", Code.INVALID_ARGUMENT)]
)
def test_a_detokenizer_gives_no_requests_to_an_engine(secured: SecuredRing, role: str, code: Code) -> None:
    """Where one may, it is the request that is looked at."""
    command = engine_pb2.Command(submit=engine_pb2.Submit(request_id="7-1", epoch=1))
    with grpc.secure_channel(secured.engine.address, secured.certificates.credentials(role)) as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        sent = held_open(engine_pb2.AttachRequest(hello=hello_message(PeerId(f"{role}-9", 7)), commands=[command]))
        frames = stub.Attach(sent, timeout=SECONDS, metadata=secured.service_metadata)
        rejection = next(one for frame in frames for one in frame.rejections)
    assert status_from_proto(rejection.status).code is code


def test_health_asks_for_a_certificate_but_not_for_whose(secured: SecuredRing) -> None:
    with grpc.secure_channel(secured.engine.address, secured.certificates.credentials("client")) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_client_reaches_nobody_whom_it_must_not_believe(secured: SecuredRing, others: Certificates) -> None:
    wrong_name = {"ca": secured.certificates.path("ca"), "server_name": "elsewhere.test"}
    for options in ({}, {"ca": others.path("ca")}, wrong_name):
        with (
            ringline.Client(secured.processor.address, patience=0, timeout=SECONDS, **options) as client,
            pytest.raises(ringline.Unavailable),
        ):
            client.models()


@pytest.mark.parametrize("token", ["", user_token("blue"), "x" * 64])
def test_an_engine_takes_no_token_but_the_services(secured: SecuredRing, token: str) -> None:
    operator = secured.certificates.credentials("operator")
    assert refusal_of_engine(secured, operator, token) is grpc.StatusCode.UNAUTHENTICATED
    web_token = secured.web_token() if token else ""
    assert refusal_of_engine(secured, operator, web_token) is grpc.StatusCode.UNAUTHENTICATED


async def test_certificates_are_replaced_while_streams_go_on(secured: SecuredRing) -> None:
    """Of the servers of every link, and while every link carries what the streams are made of."""
    ours = secured.certificates
    servers = {"engine": secured.engine, "detokenizer": secured.detokenizer, "processor": secured.processor}

    def shown() -> dict[str, int]:
        """Serial numbers, each by a new connection."""
        return {role: ours.serial(server.address, "operator") for role, server in servers.items()}

    async def replace() -> None:
        before = await asyncio.to_thread(shown)
        for role in servers:
            ours.issue(role)
        after = await asyncio.to_thread(shown)
        assert after == {role: ours.issued_serial(role) for role in servers}
        assert not set(before.values()) & set(after.values())

    async with ringline.AsyncClient(secured.processor.address, ca=ours.path("ca")) as client:
        await check_streams_uninterrupted(secured, client, replace)
    assert refusal_of_engine(secured, ours.credentials("operator")) is None


@pytest.mark.parametrize(("role", "peers"), [("detokenizer", ("engines",)), ("processor", ("engines", "detokenizers"))])
def test_new_links_show_peers_the_new_certificate(
    secured: SecuredRing, tmp_path: Path, role: str, peers: tuple[str, ...]
) -> None:
    """Of the clients of every link: recorders stand in for engines and detokenizers, and record who dials them."""
    ours = secured.certificates
    with ExitStack() as stack:
        recorders = [stack.enter_context(CertificateRecorder(ours)) for _ in peers]
        dialled = [f"--{peer}=localhost:{recorder.port}" for peer, recorder in zip(peers, recorders, strict=True)]
        service = service_on_any_port(tmp_path, f"{role}-0", *ours.flags(role), *dialled)
        service.start()
        stack.callback(stop_services, [service])
        for _ in range(2):
            for recorder in recorders:
                recorder.wait_for(ours.issued_serial(role))
            ours.issue(role)


async def test_files_that_do_not_fit_are_not_taken(secured: SecuredRing) -> None:
    ours = secured.certificates
    before, told_before = ours.serial(secured.engine.address, "operator"), len(secured.engine.records())
    (ours.folder / "engine.pem").write_text("no certificate")
    assert ours.serial(secured.engine.address, "operator") == before
    told = [line for line in secured.engine.records()[told_before:] if "not usable" in str(line["event"])]
    assert [line["reason"] for line in told] == ["--tls-cert-file: it holds no certificate in PEM form"]
    ours.issue("engine")
    assert ours.serial(secured.engine.address, "operator") != before


async def test_revoked_certificates_end_links_and_streams_go_on_over_new_ones(
    secured: SecuredRing,
) -> None:
    ours = secured.certificates
    asked = {"max_tokens": TOKENS // 4, "temperature": 0.0, "ignore_eos": True}
    async with ringline.AsyncClient(secured.processor.address, ca=ours.path("ca")) as client:
        old, links = tuple(ours.serials["processor"]), link_losses(secured)
        stream = client.stream("Once upon a time", **asked)
        await anext(aiter(stream))
        ours.issue("processor")
        ours.revoke(*old)
        try:
            async with asyncio.timeout(SECONDS):
                while link_losses(secured)["processor"] < links["processor"] + 2:  # noqa: ASYNC110 - in its log
                    await asyncio.sleep(0.05)
            answer = await stream.result()
            calm = await client.generate("Once upon a time", **asked)
        finally:
            ours.revoke()
    assert answer.token_ids == calm.token_ids
    reasons = [str(line["reason"]) for line in secured.processor.records() if line["event"] == "link ended"]
    assert any(f"{serial:x}, was revoked" in reason for reason in reasons for serial in old)
    untouched = {name: lost for name, lost in link_losses(secured).items() if name != "processor"}
    assert untouched == {name: links[name] for name in untouched}
