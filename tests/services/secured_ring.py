"""A ring whose every link is mutual TLS, with a token besides: real processes on TCP, with certificates made here.

It has two processors: one that takes everybody, and one that asks its clients for tokens.
"""

from __future__ import annotations

import json
import secrets
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import ringline
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from jwt.algorithms import ECAlgorithm
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.cli.commands.certs import replace_file
from services.common.security.certificate_authority import CertificateAuthority
from tests.processes import Process
from tests.ring import MODEL, START_TIMEOUT

SECONDS = 60
"""In which a call must end one way or the other."""
HOSTS = ("localhost", "127.0.0.1")
HOUR = timedelta(hours=1)


@dataclass
class Certificates:
    """An authority, and what it issued into a folder."""

    folder: Path
    authority: CertificateAuthority = field(default_factory=lambda: CertificateAuthority.make("test", valid=HOUR))
    serials: dict[str, list[int]] = field(default_factory=dict)
    """Of all certificates that were issued, by the names of their files."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "ca.pem").write_bytes(self.authority.certificate)
        self.revoke()

    def issue(
        self, role: str, *, age: timedelta = timedelta(0), name: str | None = None, peer: str | None = None
    ) -> None:
        """(Again) a certificate for an hour, that began ``age`` ago. ``peer``: the one peer that it is for."""
        begin = datetime.now(UTC) - age
        uri = f"spiffe://ringline/{role}" + (f"/{peer}" if peer is not None else "")
        issued = self.authority.issue(role, hosts=HOSTS, uri=uri, begin=begin, end=begin + HOUR)
        replace_file(self.folder / f"{name or role}-key.pem", issued.key, 0o600)
        replace_file(self.folder / f"{name or role}.pem", issued.certificate, 0o644)
        self.serials.setdefault(name or role, []).append(self.issued_serial(name or role))

    def revoke(self, *serials: int) -> None:
        """Have the authority's list name these certificates and no others."""
        authority, now = x509.load_pem_x509_certificate(self.authority.certificate), datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder(authority.subject, now - HOUR, now + HOUR)
        for serial in serials:
            made = made.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, now - HOUR).build())
        key = load_pem_private_key(self.authority.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        replace_file(self.folder / "crl.pem", made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), 0o644)

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def flags(self, role: str) -> list[str]:
        files = {"cert": role, "key": f"{role}-key", "ca": "ca"}
        return [f"--tls-{flag}-file={self.path(name)}" for flag, name in files.items()]

    def credentials(self, name: str | None = None) -> grpc.ChannelCredentials:
        """Of a client that believes this authority, and shows the certificate ``name``."""
        shown = (None, None) if name is None else (self._read(f"{name}-key"), self._read(name))
        return grpc.ssl_channel_credentials(self.authority.certificate, *shown)

    def issued_serial(self, role: str) -> int:
        """Of the certificate that was issued last."""
        return x509.load_pem_x509_certificate(self._read(role)).serial_number

    def serial(self, address: str, name: str) -> int:
        """Of the certificate that a server shows to a new connection; ``name`` is shown to it."""
        context = ssl.create_default_context(cafile=self.path("ca"))
        context.load_cert_chain(self.path(name), self.path(f"{name}-key"))
        context.set_alpn_protocols(["h2"])
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=60)
        with context.wrap_socket(plain, server_hostname=host) as connection:
            shown = connection.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)

    def _read(self, name: str) -> bytes:
        return Path(self.path(name)).read_bytes()


def service_on_any_port(folder: Path, name: str, *flags: str) -> Process:
    """One that is not started yet."""
    return Process(name, "127.0.0.1:0", folder / f"{name}.log", ["--no-metrics", *flags])


def start_service(folder: Path, name: str, *flags: str) -> Process:
    """Start one on a free port and wait until it serves."""
    service, end = service_on_any_port(folder, name, *flags), time.monotonic() + START_TIMEOUT
    service.start()
    while service.address.endswith(":0"):
        if not service.alive or time.monotonic() > end:
            service.kill()
            raise AssertionError(f"{name} did not start:\n{service.log.read_text()[-4000:]}")
        time.sleep(0.05)
        served = (str(line["address"]) for line in service.records() if line["event"] == "serving")
        service.address = next(served, service.address)
    return service


def stop_services(services: Sequence[Process]) -> None:
    """End them as an operator would."""
    for service in services:
        service.signal(signal.SIGTERM)
    assert [service.wait() for service in services] == [0] * len(services)


ISSUER, AUDIENCE = "https://issuer.test", "ringline"
TENANTS = """\
[tenants.narrow]
max_concurrent_requests = 1

[tenants.slow]
max_tokens_per_minute = 12

[tenants.short]
max_queued_tokens = 3

[tenants.elsewhere]
models = ["another-model"]
"""


@dataclass
class SecuredRing:
    """What the tests of it share."""

    certificates: Certificates
    service_token: str
    signing_key: ec.EllipticCurvePrivateKey
    """Of JSON web tokens."""
    engine: Process
    detokenizer: Process
    processor: Process
    guarded: Process
    """The processor that asks for tokens."""

    @property
    def folder(self) -> Path:
        return self.certificates.folder

    @property
    def service_metadata(self) -> tuple[tuple[str, str], ...]:
        """What services show of their token."""
        return (("authorization", f"Bearer {self.service_token}"),)

    def write_tokens(self, tenants: Mapping[str, str]) -> None:
        """Replace the file of tokens; ``tenants`` by token."""
        write_tokens(self.folder, tenants)

    def client(self, token: str | Callable[[], str], **options: Any) -> ringline.AsyncClient:
        """Of the guarded processor."""
        return ringline.AsyncClient(self.guarded.address, ca=self.certificates.path("ca"), token=token, **options)

    def web_token(self, tenant: str = "web", *, age: timedelta = timedelta(0), **claims: Any) -> str:
        """A JSON web token for a minute, that was made ``age`` ago."""
        made = datetime.now(UTC) - age
        usual = {"sub": tenant, "iss": ISSUER, "aud": AUDIENCE, "exp": made + timedelta(minutes=1)}
        shown = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(shown, self.signing_key, algorithm="ES256", headers={"kid": "one"})


def write_tokens(folder: Path, tenants: Mapping[str, str]) -> None:
    lines = [f"{tenant} sha256:{sha256(token.encode()).hexdigest()}" for token, tenant in tenants.items()]
    replace_file(folder / "tokens", "\n".join(lines).encode(), 0o600)


def user_token(tenant: str) -> str:
    """The token of each tenant at the beginning of every test."""
    return f"rl-{tenant}-{'x' * 32}"


def start_secured(folder: Path) -> SecuredRing:
    """Start one; the engine and the detokenizer let in services alone."""
    certificates = Certificates(folder)
    for role in ("engine", "detokenizer", "processor", "operator", "client"):
        certificates.issue(role)
    certificates.issue("processor", name="guarded", peer="processor-guarded")
    service_token, key = secrets.token_hex(32), ec.generate_private_key(ec.SECP256R1())
    public = {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "one", "use": "sig"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    (folder / "service-token").write_text(service_token + "\n")
    (folder / "tenants.toml").write_text(TENANTS)
    write_tokens(folder, {user_token(tenant): tenant for tenant in USERS})
    shared = [f"--service-token-file={folder / 'service-token'}", "--log-level=debug"]

    def start(name: str, certificate: str, *flags: str) -> Process:
        return start_service(folder, name, *certificates.flags(certificate), *shared, *flags)

    revocations = f"--tls-crl-file={certificates.path('crl')}"
    engine = start("engine-0", "engine", str(MODEL), "--kv-cache-memory-bytes=64MiB", revocations)
    engines = f"--engines={engine.address}"
    detokenizer = start("detokenizer-0", "detokenizer", engines, revocations)
    peers = (engines, f"--detokenizers={detokenizer.address}")
    processor = start("processor-0", "processor", *peers)
    guarded = start(
        "processor-guarded",
        "guarded",
        *peers,
        f"--auth-token-file={folder / 'tokens'}",
        f"--auth-jwks-file={folder / 'jwks.json'}",
        f"--auth-jwt-issuer={ISSUER}",
        f"--auth-jwt-audience={AUDIENCE}",
        f"--tenants-file={folder / 'tenants.toml'}",
    )
    return SecuredRing(certificates, service_token, key, engine, detokenizer, processor, guarded)


def engine_load(
    secured: SecuredRing, credentials: grpc.ChannelCredentials | None, token: str | None = None
) -> engine_pb2.Load:
    """What the engine says of itself, on a new connection. ``token``: default the services'."""
    address = secured.engine.address
    shown = (("authorization", f"Bearer {secured.service_token if token is None else token}"),) if token != "" else ()
    channel = grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    with channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        return stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=SECONDS, metadata=shown).load


def refusal_of_engine(
    secured: SecuredRing, credentials: grpc.ChannelCredentials | None, token: str | None = None
) -> grpc.StatusCode | None:
    """With which code the engine refuses to tell its load; None if it tells."""
    try:
        engine_load(secured, credentials, token)
    except grpc.RpcError as error:
        return error.code()
    return None


USERS = ("blue", "narrow", "slow", "short", "elsewhere")


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRing]:
    """One for all tests that leave it as they found it."""
    ring = start_secured(tmp_path_factory.mktemp("secured"))
    yield ring
    stop_services([ring.guarded, ring.processor, ring.detokenizer, ring.engine])
