"""How processors are dialled: plain text, or TLS with an authority or one certificate that is trusted."""

from __future__ import annotations

from collections.abc import Mapping

from ringline import AsyncClient

from services.common.config.settings import GatewaySettings
from services.common.links.channels import Endpoint
from services.common.security.credentials import PLAINTEXT, peer_credentials
from services.common.security.file_reload import ReloadedFile

_PINNED_FLAG = "--processor-cert-file"


class Processors:
    """The addresses and credentials of the processors; files are read again for each new connection."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises ``FatalError`` for files that cannot be used."""
        tls, pinned = settings.tls, settings.processor_cert_file
        self._addresses = settings.processors
        self._ca: str | None = None
        self._own: tuple[str | None, str | None] = None, None
        self._server_name: str | None = None
        self._credentials = PLAINTEXT
        ca = pinned or tls.tls_ca_file
        if ca is not None and not all(address.startswith("unix:") for address in self._addresses):
            self._ca, self._own = ca, (tls.tls_cert_file, tls.tls_key_file)
            if pinned is not None:
                self._server_name = ReloadedFile({_PINNED_FLAG: pinned}, _host_of).value
            self._credentials = peer_credentials(tls=True, ca_file=ca, cert_file=self._own[0], key_file=self._own[1])

    def client(self) -> AsyncClient:
        """A client without a caller's token."""
        cert, key = self._own
        return AsyncClient(self._addresses, ca=self._ca, cert=cert, key=key, server_name=self._server_name)

    def endpoints(self) -> list[Endpoint]:
        """Each of them for calls of its own."""
        return [Endpoint(address, self._credentials, self._server_name) for address in self._addresses]


def _host_of(contents: Mapping[str, bytes]) -> str:
    """A name in the certificate, whatever the address is at which the processor is dialled."""
    from services.common.security.certificates import certificate_host, read_certificates

    pem = contents[_PINNED_FLAG]
    read_certificates(_PINNED_FLAG, pem)
    return certificate_host(pem)
