"""Asks a gateway on this machine over HTTP whether it is ready for requests."""

from __future__ import annotations

import http.client
import ssl
from http import HTTPStatus
from urllib.parse import urlsplit

_TIMEOUT = 2.0


def gateway_health(url: str, cert_file: str | None, key_file: str | None) -> str:
    """Like ``check_health``. The gateway is this user's, so its certificate needs no check."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    web = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT)
    if parts.scheme == "https":
        web = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT, context=context)
    try:
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
        web.request("GET", "/health")
        return "SERVING" if web.getresponse().status == HTTPStatus.OK else "NOT_SERVING"
    except (OSError, http.client.HTTPException):
        return "UNREACHABLE"
    finally:
        web.close()
