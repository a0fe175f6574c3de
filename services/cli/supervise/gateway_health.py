"""Asks a gateway on this machine over HTTP whether it is ready for requests."""

from __future__ import annotations

import http.client
import socket
import ssl
from http import HTTPStatus
from urllib.parse import urlsplit

_TIMEOUT = 2.0


def gateway_health(address: str, cert_file: str | None, key_file: str | None) -> str:
    """Like ``check_health``; ``address``: a URL, or unix:path. The gateway is this user's: its certificate needs no
    check.
    """
    parts = urlsplit(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    web = http.client.HTTPConnection(parts.netloc or "localhost", timeout=_TIMEOUT)
    try:
        if parts.scheme == "https":
            if cert_file is not None:
                context.load_cert_chain(cert_file, key_file)
            web = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT, context=context)
        elif parts.scheme == "unix":
            web.sock = socket.socket(socket.AF_UNIX)
            web.sock.settimeout(_TIMEOUT)
            web.sock.connect(parts.path)
        web.request("GET", "/health")
        return "SERVING" if web.getresponse().status == HTTPStatus.OK else "NOT_SERVING"
    except (OSError, http.client.HTTPException):
        return "UNREACHABLE"
    finally:
        web.close()
