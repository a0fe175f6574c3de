"""The connections to processors: plain text, or TLS with an authority or one certificate that is trusted."""

from __future__ import annotations

from collections.abc import Mapping

from ringline import AsyncClient

from services.common.config.settings import GatewaySettings
from services.common.security.credentials import PeerCredentials, peer_credentials, reloaded_tls_files
from services.common.security.file_reload import ReloadedFile

_PINNED_FLAG = "--processor-cert-file"


def client_of(settings: GatewaySettings) -> AsyncClient:
    """A client of the processors, without a caller's token. Raises ``FatalError`` for files that cannot be used.

    The client reads the files again for each new connection.
    """
    tls, ca = settings.tls, settings.processor_cert_file or settings.tls.tls_ca_file
    if ca is None or all(address.startswith("unix:") for address in settings.processors):
        return AsyncClient(settings.processors)
    reloaded_tls_files(cert_file=tls.tls_cert_file, key_file=tls.tls_key_file, ca_file=tls.tls_ca_file)
    name = _pinned_name(settings)
    return AsyncClient(settings.processors, ca=ca, cert=tls.tls_cert_file, key=tls.tls_key_file, server_name=name)


def health_credentials(settings: GatewaySettings) -> tuple[PeerCredentials, str | None]:
    """The same for asking after their health, with the name that their certificate must have; None: the address's."""
    tls, ca = settings.tls, settings.processor_cert_file or settings.tls.tls_ca_file
    credentials = peer_credentials(
        tls=ca is not None, ca_file=ca, cert_file=tls.tls_cert_file, key_file=tls.tls_key_file
    )
    return credentials, _pinned_name(settings)


def _pinned_name(settings: GatewaySettings) -> str | None:
    pinned = settings.processor_cert_file
    return None if pinned is None else ReloadedFile({_PINNED_FLAG: pinned}, _host_of).value


def _host_of(contents: Mapping[str, bytes]) -> str:
    """A name in the certificate, whatever the address is at which the processor is dialled."""
    from services.common.security.certificates import certificate_host, read_certificates

    pem = contents[_PINNED_FLAG]
    read_certificates(_PINNED_FLAG, pem)
    return certificate_host(pem)
