"""TLS credentials for gRPC servers and channels, from files that may be replaced without a restart.

Files are checked for changes at every new connection; open connections keep their certificates. A unix socket has no
TLS: the permissions of its file decide who may connect.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import grpc

from services.common.security.file_reload import ReloadedFile

if TYPE_CHECKING:  # cryptography takes a tenth of a second to load, and plain-text processes do not need it
    from services.common.security.certificates import TlsFiles


def reloaded_tls_files(*, cert_file: str | None, key_file: str | None, ca_file: str | None) -> ReloadedFile[TlsFiles]:
    """The files that are given; raises ``FatalError`` for one that cannot be used."""
    from services.common.security.certificates import CA_FLAG, CERT_FLAG, KEY_FLAG, parse_tls_files

    given: Mapping[str, str | None] = {CERT_FLAG: cert_file, KEY_FLAG: key_file, CA_FLAG: ca_file}
    files = {flag: path for flag, path in given.items() if path is not None}
    return ReloadedFile(files, parse_tls_files)


def server_credentials(files: ReloadedFile[TlsFiles], *, require_client_certificate: bool) -> grpc.ServerCredentials:
    """A server's credentials; before each handshake gRPC asks whether the certificate was replaced."""
    lock = threading.Lock()
    served = files.value

    def configuration(now: TlsFiles) -> grpc.ServerCertificateConfiguration:
        assert now.key is not None
        assert now.chain is not None
        authorities = now.authorities if require_client_certificate else None
        return grpc.ssl_server_certificate_configuration([(now.key, now.chain)], authorities)

    def replaced() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        now = files.value
        with lock:
            if now is served:
                return None
            served = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        configuration(served),
        replaced,  # type: ignore[arg-type]  # None: nothing has changed
        require_client_certificate,
    )


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """A channel's credentials; the channel keeps them for its lifetime."""
    return grpc.ssl_channel_credentials(files.authorities, files.key, files.chain)
