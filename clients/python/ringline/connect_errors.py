"""Why no connection could be made, read from the text of gRPC's error: gRPC reports it nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ringline.errors import RingError, Unavailable

_NO_CONNECTION = (
    "connections to all backends failing",
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
)
"""How gRPC's texts begin when a call reached no server."""
_SYSTEM_ERROR = re.compile("Connection refused|No such file or directory|No route to host|Network is unreachable")
_UNKNOWN_NAME, _TIMED_OUT = "the name has no address", "Connection timed out"
_REASONS = {
    re.compile("Domain name not found|no data"): _UNKNOWN_NAME,
    re.compile("timed out|[Tt]imeout|FD [Ss]hutdown"): _TIMED_OUT,
    re.compile("WRONG_VERSION_NUMBER"): "TLS handshake failed: the server does not use TLS",
    re.compile("CERTIFICATE_VERIFY_FAILED"): "TLS handshake failed: the authorities in ca (default: the public ones) "
    "did not issue the server's certificate, or it has expired",
    re.compile("Hostname Verification|is not in peer certificate"): "TLS handshake failed: the server's certificate is "
    "for another name; server_name sets the expected one",
    re.compile("Socket closed|Connection reset"): "the server closed the connection: it may require TLS (tls or ca), "
    "or a client certificate (cert and key)",
}
"""Patterns in gRPC's texts, and what they mean."""
CONNECT_ADVICE = "`ringline serve` starts a server, wait_for_ready=True waits for one"
"""For a program that uses the library; a gateway removes it for its callers."""


def connection_failure(error: RingError) -> str | None:
    """Why the call that ended with ``error`` reached no server; None if it reached one, or may have."""
    text = str(error)
    if type(error) is not Unavailable or not text.startswith(_NO_CONNECTION):
        return None
    if (found := _SYSTEM_ERROR.search(text)) is not None:
        return found[0]
    known = (reason for pattern, reason in _REASONS.items() if pattern.search(text))
    return next(known, text.rpartition("last error: ")[2])


def not_reached(reasons: Mapping[str, str]) -> Unavailable:
    """The error of a client that has never reached a server. ``reasons``: by address."""
    text = "; ".join(f"{address} is not available: {reason}" for address, reason in reasons.items())
    absent = any(
        reason in (_UNKNOWN_NAME, _TIMED_OUT) or _SYSTEM_ERROR.fullmatch(reason) for reason in reasons.values()
    )
    error = Unavailable(f"{text}; {CONNECT_ADVICE}" if absent else text)
    error.unreached = reasons
    return error
