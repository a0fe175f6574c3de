"""The HTTP server's TLS: certificates replaceable without a restart, and client certificates.

As with gRPC (``services.common.security.certificate_checker``), client certificates are checked throughout: a
connection ends when its certificate expires or is revoked.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from cryptography import x509

from services.common.config.security_settings import requires_client_certificate
from services.common.config.settings import ServiceSettings
from services.common.security.certificate_checker import (
    TrustedAuthorities,
    Verdict,
    check_chain,
    reloaded_authorities,
)
from services.common.security.certificates import TlsFiles
from services.common.security.credentials import reloaded_tls_files
from services.common.security.file_reload import ReloadedFile

_PROTOCOLS = ["http/1.1"]
_MAX_VERDICTS = 4096
_LOOK_SECONDS = 0.2
"""Between checks of the files: every open connection asks twice a second."""


class ClientCertificates:
    """Checks client certificates against the current authorities and revocation lists."""

    def __init__(self, authorities: ReloadedFile[TrustedAuthorities]) -> None:
        self._authorities = authorities
        self._verdicts: dict[bytes, Verdict] = {}
        """By certificate, for this version of the files."""
        self._version = authorities.version
        self._present = authorities.value
        self._looked_at = time.monotonic()

    def valid(self, certificate: bytes) -> bool:
        """Whether a certificate (DER) is valid now. The handshake verified its chain."""
        if (now := time.monotonic()) > self._looked_at + _LOOK_SECONDS:
            self._present, self._looked_at = self._authorities.value, now
        if self._version != self._authorities.version or len(self._verdicts) > _MAX_VERDICTS:
            self._version = self._authorities.version
            self._verdicts.clear()
        if (verdict := self._verdicts.get(certificate)) is None:
            chain = [x509.load_der_x509_certificate(certificate)]
            verdict = self._verdicts[certificate] = check_chain(chain, self._present)
        return verdict.problem is None and datetime.now(UTC) <= verdict.expires


class ServerTls:
    """Gives new connections the files' current certificate; open ones keep theirs."""

    def __init__(self, files: ReloadedFile[TlsFiles], clients: ClientCertificates | None) -> None:
        """``clients`` None: they need no certificate."""
        self._files = files
        self.clients = clients
        self._made_of = files.value
        self._current = self._context(self._made_of)
        self.context = self._context(self._made_of)
        """To listen with."""
        self.context.sni_callback = self._use_current

    def _use_current(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if (now := self._files.value) is not self._made_of:
            self._current, self._made_of = self._context(now), now
        connection.context = self._current

    def _context(self, files: TlsFiles) -> ssl.SSLContext:
        assert files.chain is not None
        assert files.key is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(_PROTOCOLS)
        with _in_memory(files.chain) as chain, _in_memory(files.key) as key:
            context.load_cert_chain(chain, key)
        if self.clients is not None and files.authorities is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=files.authorities.decode("ascii", "replace"))
        return context


def server_tls(settings: ServiceSettings) -> ServerTls | None:
    """None for plain text. Raises ``FatalError`` for unusable files."""
    tls = settings.tls
    if tls.tls_cert_file is None:
        return None
    required = requires_client_certificate(tls, internal=False)
    files = reloaded_tls_files(
        cert_file=tls.tls_cert_file, key_file=tls.tls_key_file, ca_file=tls.tls_ca_file if required else None
    )
    if tls.tls_ca_file is None or not required:
        return ServerTls(files, None)
    return ServerTls(files, ClientCertificates(reloaded_authorities(tls.tls_ca_file, tls.tls_crl_file)))


@contextmanager
def _in_memory(pem: bytes) -> Iterator[str]:
    """A path for ``ssl``, which loads keys only from files: uses the bytes checked, and no disk."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
