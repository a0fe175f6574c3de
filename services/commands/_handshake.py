"""Why no call got through to a server that is there: a TLS handshake tried by hand, since gRPC tells little of its own.

gRPC says of several addresses only what the last one did, and of a server that wants TLS only that it hung up.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from services.runtime.addresses import host_and_port

if TYPE_CHECKING:
    from services.commands._options import Connection

_SECONDS = 2.0
"""For each step of a handshake; who is slower is not diagnosed."""

_NOT_LET_IN = (
    "the TLS handshake failed, the server ended it: it may want a certificate that its authority issued, "
    "--tls-cert-file with --tls-key-file"
)


def tls_trouble(address: str, connection: Connection) -> str | None:
    """What is wrong between the server at ``address`` and the flags for TLS, and which of them may help.

    None: nothing that a handshake shows, be it that nobody listens or that all is well.
    """
    if address.startswith("unix:"):
        return None
    host, port = host_and_port(address)
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as plain:
            if connection.encrypted:
                return _refusal(plain, host, connection)
            return _answers_by_tls(plain)
    except (OSError, ValueError):  # of reaching it, or of a file that the flags name
        return None


def _answers_by_tls(plain: socket.socket) -> str | None:
    """For a client without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(plain):
        return "the server wants TLS: --tls-ca-file names its authority's certificate, --tls believes the public ones"


def _refusal(plain: socket.socket, host: str, connection: Connection) -> str | None:
    """For a client with TLS."""
    context = ssl.create_default_context(cafile=connection.tls_ca_file)
    context.set_alpn_protocols(["h2"])
    if connection.tls_cert_file is not None:
        context.load_cert_chain(connection.tls_cert_file, connection.tls_key_file)
    try:
        with context.wrap_socket(plain, server_hostname=connection.tls_server_name or host) as encrypted:
            return None if _goes_on(encrypted) else _NOT_LET_IN
    except ssl.SSLCertVerificationError as error:
        return (
            f"the TLS handshake failed, the server's certificate was not verified ({error.verify_message}): "
            "--tls-ca-file names the authority to believe, --tls-server-name whom the certificate must be for"
        )
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return _NOT_LET_IN
        return (
            f"the TLS handshake failed ({error.reason or error}): the server may not use TLS, "
            "which --tls and --tls-ca-file ask for"
        )


def _goes_on(encrypted: ssl.SSLSocket) -> bool:
    """Whether the server, which speaks first, took the handshake: with TLS 1.3 it refuses this side only after it."""
    try:
        return bool(encrypted.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False
