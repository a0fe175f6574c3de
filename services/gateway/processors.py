"""How to dial processors: plain text, or TLS with a trusted authority or one pinned certificate."""

from __future__ import annotations

from collections.abc import Mapping

import grpc.aio
from ringline import AsyncClient
from ringline.security import Security

from services.common.config.settings import GatewaySettings
from services.common.security.credentials import reloaded_tls_files
from services.common.security.file_reload import ReloadedFile
from services.ring.identity import GATEWAY_HEADER

_PINNED_FLAG = "--processor-cert-file"


class Processors:
    """Processors' addresses and credentials; each new connection reads the files again."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises ``FatalError`` for unusable files."""
        tls, pinned = settings.tls, settings.processor_cert_file
        self.metadata = {GATEWAY_HEADER: settings.name}
        """Of all calls: their live pages show who calls."""
        self.addresses = settings.processors
        self._security = Security()
        ca = pinned or tls.tls_ca_file
        if ca is not None and not all(address.startswith("unix:") for address in self.addresses):
            name = None if pinned is None else ReloadedFile({_PINNED_FLAG: pinned}, _host_of).value
            cert, key = tls.tls_cert_file, tls.tls_key_file
            reloaded_tls_files(ca_file=ca, cert_file=cert, key_file=key)  # an unusable file ends the start
            self._security = Security(ca=ca, cert=cert, key=key, server_name=name)

    def client(self) -> AsyncClient:
        """A client without a caller's token."""
        of = self._security
        return AsyncClient(
            self.addresses, ca=of.ca, cert=of.cert, key=of.key, server_name=of.server_name, metadata=self.metadata
        )

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel like the client's, to one of ``addresses``, for the gateway's own calls."""
        return self._security.aio_channel(address)


def _host_of(contents: Mapping[str, bytes]) -> str:
    """A name in the certificate, independent of the address dialled."""
    from services.common.security.certificates import certificate_host, read_certificates

    pem = contents[_PINNED_FLAG]
    read_certificates(_PINNED_FLAG, pem)
    return certificate_host(pem)
