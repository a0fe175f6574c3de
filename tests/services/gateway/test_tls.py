"""HTTPS: the certificate is replaced without a restart, and clients may have to show theirs."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from services.cli.commands._connection import Connection
from services.cli.commands._diagnosis import connection_trouble
from services.cli.commands.certs import replace_file
from services.common.security.certificate_authority import CertificateAuthority
from tests.services.gateway.http_harness import Running, request, running

HOUR = timedelta(hours=1)


class Files:
    """An authority, and what it issued, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority.make("test", valid=HOUR)
        (folder / "ca.pem").write_bytes(self.authority.certificate)

    def issue(self, name: str) -> None:
        now = datetime.now(UTC)
        issued = self.authority.issue(
            name, hosts=["127.0.0.1"], uri=f"ringline:{name}", begin=now - HOUR, end=now + HOUR
        )
        for kind, pem in (("crt", issued.certificate), ("key", issued.key)):
            replace_file(self.folder / f"{name}.{kind}", pem, mode=0o600)

    def revoke(self, *names: str) -> None:
        """List the present certificates of these as revoked, and no others."""
        issuer = x509.load_pem_x509_certificate(self.authority.certificate)
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
        builder = builder.last_update(now - HOUR).next_update(now + HOUR)
        for name in names:
            serial = x509.load_pem_x509_certificate((self.folder / f"{name}.crt").read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - HOUR).build()
            builder = builder.add_revoked_certificate(revoked)
        signed = builder.sign(load_pem_private_key(self.authority.key, None), hashes.SHA256())  # type: ignore[arg-type]
        replace_file(self.folder / "crl.pem", signed.public_bytes(Encoding.PEM), mode=0o600)

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    made.issue("gateway")
    return made


async def served(gateway: Running, context: ssl.SSLContext) -> tuple[int, str | None]:
    """The serial number of the certificate shown, and the protocol chosen; asks a request, too."""
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(request("GET", "/live", headers={"connection": "close"}))
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    shown = writer.get_extra_info("ssl_object")
    writer.close()
    return int(shown.getpeercert()["serialNumber"], 16), shown.selected_alpn_protocol()


async def test_a_new_certificate_is_shown_to_new_connections(files: Files) -> None:
    context = ssl.create_default_context(cafile=files.path("ca.pem"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    options = {"tls_cert_file": files.path("gateway.crt"), "tls_key_file": files.path("gateway.key")}
    async with running(**options) as gateway:
        first, protocol = await served(gateway, context)
        assert protocol == "http/1.1"
        files.issue("gateway")
        second, _ = await served(gateway, context)
        assert second != first
        (files.folder / "gateway.key").write_text("nonsense")
        assert await served(gateway, context) == (second, "http/1.1"), "an unusable file changes nothing"
        async with gateway.connection() as plain:
            plain.send(request("GET", "/live"))
            assert b"HTTP" not in await plain.ended()


async def test_a_client_of_grpc_is_told_that_this_is_another_port(files: Files) -> None:
    options = {"tls_cert_file": files.path("gateway.crt"), "tls_key_file": files.path("gateway.key")}
    async with running(**options) as gateway:
        for ca in (None, files.path("ca.pem")):
            connection = Connection(False, ca, None, None, None, None)
            trouble = await asyncio.to_thread(connection_trouble, gateway.address, connection)
            assert trouble is not None
            assert "HTTP port, not a gRPC port" in trouble


async def test_clients_show_a_certificate_where_that_is_asked(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is revoked meanwhile ends their connections."""
    monkeypatch.setattr("services.gateway.http.server._SWEEP_SECONDS", 0.05)
    files.issue("client")
    files.issue("other")
    files.revoke("other")
    options = {
        "tls_cert_file": files.path("gateway.crt"),
        "tls_key_file": files.path("gateway.key"),
        "tls_ca_file": files.path("ca.pem"),
        "tls_client_auth": "require",
        "tls_crl_file": files.path("crl.pem"),
    }
    async with running(**options) as gateway:
        nobody = ssl.create_default_context(cafile=files.path("ca.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await served(gateway, nobody)
        known = ssl.create_default_context(cafile=files.path("ca.pem"))
        known.load_cert_chain(files.path("client.crt"), files.path("client.key"))
        await served(gateway, known)
        host, _, port = gateway.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=known)
        writer.write(request("GET", "/live"))
        await reader.readuntil(b"SERVING\n")
        files.revoke("other", "client")
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.transport.abort()
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await served(gateway, known)
