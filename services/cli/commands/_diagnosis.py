"""Explains why a call to a reachable server failed: another kind of port, another service of the ring, or TLS."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from typing import TYPE_CHECKING

import grpc.aio
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.common.config.addresses import METRICS_PORT_OFFSET, host_and_port, join_address
from services.common.links.channels import Endpoint, check_health
from services.common.telemetry.metrics_endpoint import server_header

if TYPE_CHECKING:
    from services.cli.commands._connection import Connection

_HTTP = "this is an HTTP port, not a gRPC port; give the port of a processor"
_PROTOCOLS = ["h2", "http/1.1"]
"""A gRPC port selects the first, a gateway's the second."""
_SECONDS = 2.0
"""Timeout of each step of a handshake; a slower server is not diagnosed."""

_NOT_LET_IN = (
    "the server ended the TLS handshake: it may require a certificate that its authority issued, which --tls-cert-file "
    "and --tls-key-file give"
)

FULL_NAMES = {
    "processor": inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    "engine": engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name,
    "detokenizer": detokenizer_pb2.DESCRIPTOR.services_by_name["DetokenizerService"].full_name,
}
"""Each service's full name in gRPC."""
_WITH_ARTICLE = {"processor": "a processor", "engine": "an engine", "detokenizer": "a detokenizer"}
_METRICS_OF = {server_header(service): service for service in FULL_NAMES}


def connection_trouble(address: str, connection: Connection) -> str | None:
    """Why calls to ``address`` fail although something listens there; None if not visible."""
    if address.startswith("unix:"):
        return None
    host, port = host_and_port(address)
    return _http_trouble(host, port) or _tls_trouble(host, port, connection)


def _tls_trouble(host: str, port: int, connection: Connection) -> str | None:
    """Why the TLS flags do not fit the server, and which may help.

    None if a handshake shows no problem, or if nothing listens.
    """
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as plain:
            if connection.encrypted:
                return _refusal(plain, host, connection)
            return _answers_by_tls(plain)
    except (OSError, ValueError):  # it cannot be reached, or a file of the flags cannot be read
        return None


def _answers_by_tls(plain: socket.socket) -> str | None:
    """``_tls_trouble`` for clients without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(_PROTOCOLS)
    with context.wrap_socket(plain) as encrypted:
        return _http_by_tls(encrypted) or (
            "the server requires TLS: give --tls if a public authority issued its certificate, else --tls-ca-file with "
            "the authority's own"
        )


def _refusal(plain: socket.socket, host: str, connection: Connection) -> str | None:
    """``_tls_trouble`` for clients with TLS."""
    context = ssl.create_default_context(cafile=connection.tls_ca_file)
    context.set_alpn_protocols(_PROTOCOLS)
    if connection.tls_cert_file is not None:
        context.load_cert_chain(connection.tls_cert_file, connection.tls_key_file)
    try:
        with context.wrap_socket(plain, server_hostname=connection.tls_server_name or host) as encrypted:
            return _http_by_tls(encrypted) or (None if _goes_on(encrypted) else _NOT_LET_IN)
    except ssl.SSLCertVerificationError as error:
        return (
            f"the server's certificate is not trusted ({error.verify_message}): --tls-ca-file gives the authority that "
            "issued it, --tls-server-name the name that it is issued for"
        )
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return _NOT_LET_IN
        return (
            f"the TLS handshake failed ({error.reason or error}): if the server does not use TLS, leave out --tls and "
            "--tls-ca-file"
        )


def _http_by_tls(encrypted: ssl.SSLSocket) -> str | None:
    return _HTTP if encrypted.selected_alpn_protocol() == "http/1.1" else None


def _goes_on(encrypted: ssl.SSLSocket) -> bool:
    """Whether the server accepted our certificate: with TLS 1.3 it refuses one only after the handshake."""
    try:
        return bool(encrypted.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def _http_trouble(host: str, port: int) -> str | None:
    """A message if the port speaks plain HTTP, with the service if it is a metrics port."""
    web = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        web.request("GET", "/health")
        server = web.getresponse().getheader("Server", "")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        web.close()
    service = _METRICS_OF.get(server)
    if service is None:
        return _HTTP
    own = port - METRICS_PORT_OFFSET if port > METRICS_PORT_OFFSET else port + METRICS_PORT_OFFSET
    if service == "processor":
        return (
            "this is a processor's metrics port, for Prometheus and browsers; by default, clients connect to "
            f"{join_address(host, own)}"
        )
    return f"this is {_WITH_ARTICLE[service]}'s metrics port, for Prometheus; clients connect to a processor"


async def service_trouble(channel: grpc.aio.Channel, wanted: str) -> str | None:
    """A message if a service of the ring other than ``wanted`` answers, else None."""
    for service, name in FULL_NAMES.items():
        if await check_health(channel, name, _SECONDS) not in ("SERVICE_UNKNOWN", "UNREACHABLE"):
            return None if service == wanted else f"this is {_WITH_ARTICLE[service]}, not {_WITH_ARTICLE[wanted]}"
    return None


def call_trouble(address: str, wanted: str, connection: Connection) -> str | None:
    """``service_trouble`` of the server at ``address``, for callers without an event loop."""

    async def ask() -> str | None:
        credentials, name = connection.credentials(address), connection.tls_server_name
        async with Endpoint(address, credentials, name).open() as channel:
            return await service_trouble(channel, wanted)

    return asyncio.run(ask())
