"""Calls and links end when what vouched for them does so no longer: over real TLS, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.cli.commands.certs import replace_file
from services.common.config.errors import FatalError
from services.common.config.options import build
from services.common.config.settings import EngineServiceSettings, ServerSettings
from services.common.links.channels import Endpoint
from services.common.links.redial import maintain_link
from services.common.rpc.server import Server
from services.common.security.certificate_authority import CertificateAuthority
from services.common.security.certificate_checker import (
    CertificateChecker,
    TrustedAuthorities,
    check_chain,
    reloaded_authorities,
)
from services.common.security.credentials import (
    certificate_authorizers,
    peer_credentials,
    reloaded_tls_files,
    server_credentials,
)
from tests.services.secured_ring import HOUR, Certificates

SERVICE = "ringline.inference.v1.InferenceService"
SECONDS = 60.0


class Sessions(inference_pb2_grpc.InferenceServiceServicer):
    """Has what it is sent come back."""

    async def Session(self, requests: Any, context: Any) -> None:
        async for _ in requests:
            await context.write(inference_pb2.SessionResponse())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.common.security.certificate_checker.CHECK_INTERVAL", 0.02)
    monkeypatch.setattr("services.common.links.redial.CA_CHECK_INTERVAL", 0.02)


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    certificates = Certificates(tmp_path)
    for role in ("engine", "processor", "operator"):
        certificates.issue(role)
    return certificates


@asynccontextmanager
async def serving(ours: Certificates, now: Any = None) -> AsyncIterator[str]:
    """The address of a server that asks for certificates."""
    files = reloaded_tls_files(cert_file=ours.path("engine"), key_file=ours.path("engine-key"), ca_file=ours.path("ca"))
    clock = () if now is None else (now,)
    checker = CertificateChecker(reloaded_authorities(ours.path("ca"), ours.path("crl")), *clock)
    credentials = server_credentials(files, require_client_certificate=True)
    server = Server(ServerSettings(port=0), [SERVICE], credentials=credentials, authorizers=[checker.authorize])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Sessions(), server.grpc)
    try:
        yield await server.start()
    finally:
        await server.stop()


async def begin(stub: Any) -> Any:
    """A session that is heard."""
    call = stub.Session(timeout=SECONDS)
    await call.write(inference_pb2.SessionRequest())
    assert await call.read() is not grpc.aio.EOF
    return call


async def ends(call: Any) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details()


def channel(address: str, ours: Certificates, name: str) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address.replace("127.0.0.1", "localhost"), ours.credentials(name))


async def test_a_revoked_certificate_ends_its_calls_and_begins_none_while_others_go_on(ours: Certificates) -> None:
    async with (
        serving(ours) as address,
        channel(address, ours, "processor") as one,
        channel(address, ours, "operator") as two,
    ):
        stubs = [inference_pb2_grpc.InferenceServiceStub(each) for each in (one, two)]
        revoked, other = [await begin(stub) for stub in stubs]
        serial = ours.issued_serial("processor")
        ours.revoke(serial)
        expected = (
            grpc.StatusCode.UNAUTHENTICATED,
            f"the caller's certificate, with the serial number {serial:x}, was revoked",
        )
        assert await ends(revoked) == expected
        assert await ends(stubs[0].Session(timeout=SECONDS)) == expected, "on the connection that stands"
        await other.write(inference_pb2.SessionRequest())
        assert await other.read() is not grpc.aio.EOF
        other.cancel()


async def test_calls_end_when_their_certificate_expires(ours: Certificates) -> None:
    ahead = timedelta(0)
    async with serving(ours, lambda: datetime.now(UTC) + ahead) as address, channel(address, ours, "processor") as one:
        call = await begin(inference_pb2_grpc.InferenceServiceStub(one))
        ahead = 2 * HOUR
        code, details = await ends(call)
        assert (code, ", expired on " in details) == (grpc.StatusCode.UNAUTHENTICATED, True)


async def test_calls_end_when_their_authority_is_not_believed_any_more(ours: Certificates, tmp_path: Path) -> None:
    others = Certificates(tmp_path / "others")
    both = ours.authority.certificate + others.authority.certificate
    replace_file(tmp_path / "ca.pem", both, 0o644)
    async with serving(ours) as address, channel(address, ours, "processor") as one:
        call = await begin(inference_pb2_grpc.InferenceServiceStub(one))
        replace_file(tmp_path / "ca.pem", others.authority.certificate, 0o644)
        code, details = await ends(call)
    assert (code, details.endswith("is not from a trusted authority")) == (grpc.StatusCode.UNAUTHENTICATED, True)


async def test_a_link_is_made_anew_when_an_authority_is_taken_away_but_not_when_one_comes(
    ours: Certificates, tmp_path: Path
) -> None:
    first, second = ours.authority.certificate, CertificateAuthority.make("second", valid=HOUR).certificate
    third = CertificateAuthority.make("third", valid=HOUR).certificate
    believed = tmp_path / "believed.pem"
    believed.write_bytes(first + second)
    credentials = peer_credentials(
        tls=True, ca_file=str(believed), cert_file=ours.path("processor"), key_file=ours.path("processor-key")
    )
    links: asyncio.Queue[Any] = asyncio.Queue()

    async def carry(channel: grpc.aio.Channel, backoff: Any) -> None:
        call = await begin(inference_pb2_grpc.InferenceServiceStub(channel))
        backoff.reset()
        links.put_nowait(call)
        await call.read()

    async with serving(ours) as address:
        task = asyncio.create_task(maintain_link(Endpoint(address, credentials, "localhost"), carry))
        link = await links.get()
        replace_file(believed, first + second + third, 0o644)
        await asyncio.sleep(0.1)  # time to be seen; it is no error if it is not
        assert not link.done()
        replace_file(believed, first, 0o644)
        again = await asyncio.wait_for(links.get(), SECONDS)
        assert (link.done(), again.done()) == (True, False)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def authority(name: str, *, below: CertificateAuthority | None = None) -> CertificateAuthority:
    """One that may sign for others, or is signed by one."""
    made = CertificateAuthority.make(name, valid=HOUR)
    above = below or made
    own, issuer = (x509.load_pem_x509_certificate(each.certificate) for each in (made, above))
    key = load_pem_private_key(above.key, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(issuer.subject, own.subject, own.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(own.not_valid_before_utc).not_valid_after(own.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return CertificateAuthority(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), made.key)


@pytest.fixture
def chained(ours: Certificates, tmp_path: Path) -> tuple[grpc.ChannelCredentials, bytes]:
    """A certificate by way of a second authority to one that is believed; and a list that revokes the second."""
    root = Certificates(tmp_path / "root", authority("root"))
    middle = Certificates(tmp_path / "middle", authority("middle", below=root.authority))
    middle.issue("processor")
    key, leaf = (Path(middle.path(name)).read_bytes() for name in ("processor-key", "processor"))
    Path(ours.path("ca")).write_bytes(ours.authority.certificate + root.authority.certificate)
    root.revoke(x509.load_pem_x509_certificate(middle.authority.certificate).serial_number)
    chain = leaf + middle.authority.certificate
    credentials = grpc.ssl_channel_credentials(ours.authority.certificate, key, chain)
    return credentials, Path(root.path("crl")).read_bytes()


async def test_a_chain_leads_to_an_authority_until_a_part_of_it_is_revoked(
    chained: tuple[grpc.ChannelCredentials, bytes], ours: Certificates
) -> None:
    credentials, revoked = chained
    async with (
        serving(ours) as address,
        grpc.aio.secure_channel(address.replace("127.0.0.1", "localhost"), credentials) as one,
    ):
        call = await begin(inference_pb2_grpc.InferenceServiceStub(one))
        replace_file(Path(ours.path("crl")), revoked, 0o644)
        code, details = await ends(call)
    assert (code, details.endswith("was revoked")) == (grpc.StatusCode.UNAUTHENTICATED, True)


def test_a_certificate_may_be_of_an_authority_below_one_that_is_believed(ours: Certificates) -> None:
    leaf = x509.load_pem_x509_certificate(Path(ours.path("processor")).read_bytes())
    root = x509.load_pem_x509_certificate(ours.authority.certificate)
    other = x509.load_pem_x509_certificate(CertificateAuthority.make("other", valid=HOUR).certificate)
    assert check_chain([leaf], TrustedAuthorities((other, root))).problem is None
    assert check_chain([leaf, root], TrustedAuthorities((other,))).problem == "is not from a trusted authority"
    assert check_chain([leaf], TrustedAuthorities((leaf,))).problem is None
    assert check_chain([leaf], TrustedAuthorities((root,))).expires == min(
        leaf.not_valid_after_utc, root.not_valid_after_utc
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"text", "it holds no revocation list"), (None, "no authority of --tls-ca-file signed the list of")],
)
def test_a_list_that_would_be_in_vain_ends_a_process(
    ours: Certificates, tmp_path: Path, content: bytes | None, words: str
) -> None:
    strange = Certificates(tmp_path / "others").folder / "crl.pem"
    if content is not None:
        strange.write_bytes(content)
    names = {"tls_cert_file": "engine", "tls_key_file": "engine-key", "tls_ca_file": "ca"}
    files = {option: ours.path(name) for option, name in names.items()}
    settings = build(EngineServiceSettings(), {**files, "tls_crl_file": str(strange)})
    with pytest.raises(FatalError, match=words):
        certificate_authorizers(settings, internal=True)
