"""HTTPS: the certificate is replaced without a restart, and clients may have to show theirs."""

import asyncio
import ssl
from pathlib import Path

import pytest

from services.cli.commands._connection import Connection
from services.cli.commands._diagnosis import connection_trouble
from services.cli.commands.certs import replace_file
from tests.services.gateway.http_harness import Running, request, running
from tests.services.secured_ring import Certificates


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    made.issue("gateway")
    return made


def options_of(files: Certificates) -> dict[str, str]:
    return {"tls_cert_file": files.path("gateway"), "tls_key_file": files.path("gateway-key")}


async def served(gateway: Running, context: ssl.SSLContext) -> tuple[int, str | None]:
    """The serial number of the certificate shown, and the protocol chosen; asks a request, too."""
    host, _, port = gateway.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(request("GET", "/live", headers={"connection": "close"}))
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    shown = writer.get_extra_info("ssl_object")
    writer.close()
    return int(shown.getpeercert()["serialNumber"], 16), shown.selected_alpn_protocol()


async def test_a_new_certificate_is_shown_to_new_connections(files: Certificates) -> None:
    context = ssl.create_default_context(cafile=files.path("ca"))
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with running(**options_of(files)) as gateway:
        first, protocol = await served(gateway, context)
        assert protocol == "http/1.1"
        files.issue("gateway")
        second, _ = await served(gateway, context)
        assert second != first
        replace_file(files.folder / "gateway-key.pem", b"nonsense", 0o600)
        assert await served(gateway, context) == (second, "http/1.1"), "an unusable file changes nothing"
        async with gateway.connection() as plain:
            plain.send(request("GET", "/live"))
            assert b"HTTP" not in await plain.ended()


async def test_a_client_of_grpc_is_told_that_this_is_another_port(files: Certificates) -> None:
    async with running(**options_of(files)) as gateway:
        for ca in (None, files.path("ca")):
            connection = Connection(False, ca, None, None, None, None)
            trouble = await asyncio.to_thread(connection_trouble, gateway.address, connection)
            assert trouble is not None
            assert "HTTP port, not a gRPC port" in trouble


async def test_clients_show_a_certificate_where_that_is_asked(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is revoked meanwhile ends their connections."""
    monkeypatch.setattr("services.gateway.http.server._SWEEP_SECONDS", 0.05)
    files.issue("client")
    files.issue("other")
    files.revoke(files.issued_serial("other"))
    asked = {"tls_ca_file": files.path("ca"), "tls_client_auth": "require", "tls_crl_file": files.path("crl")}
    async with running(**options_of(files), **asked) as gateway:
        nobody = ssl.create_default_context(cafile=files.path("ca"))
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await served(gateway, nobody)
        known = ssl.create_default_context(cafile=files.path("ca"))
        known.load_cert_chain(files.path("client"), files.path("client-key"))
        await served(gateway, known)
        host, _, port = gateway.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=known)
        writer.write(request("GET", "/live"))
        await reader.readuntil(b"SERVING\n")
        files.revoke(files.issued_serial("other"), files.issued_serial("client"))
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.transport.abort()
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await served(gateway, known)
