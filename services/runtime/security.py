"""The options of TLS and of who may call a service, made into what its server and its links are given."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from services.runtime.errors import FatalError
from services.runtime.gate import Gate
from services.runtime.peer_credentials import PLAIN, PeerCredentials, peer_credentials
from services.runtime.roles import Identities, Role
from services.runtime.security_settings import requires_client_certificate
from services.runtime.service_identity import ServiceIdentity
from services.runtime.settings import DetokenizerSettings, EngineServiceSettings, ServiceSettings
from services.runtime.tls import server_credentials, tls_files
from services.runtime.tokens import watched_tokens

LEAST_SERVICE_TOKEN = 32
"""Characters: nobody guesses 128 bits."""
_TOKEN_FLAG = "--service-token-file"


def listening_credentials(settings: ServiceSettings, *, internal: bool) -> grpc.ServerCredentials | None:
    """What a service listens with; None for plain text. ``internal``: whether services alone call it.

    Raises ``FatalError`` for files that cannot be used.
    """
    tls = settings.tls
    if tls.tls_cert_file is None:
        return None
    required = requires_client_certificate(tls, internal=internal)
    files = tls_files(
        cert_file=tls.tls_cert_file, key_file=tls.tls_key_file, ca_file=tls.tls_ca_file if required else None
    )
    return server_credentials(files, require_client_certificate=required)


def certificate_gate(settings: ServiceSettings, *, internal: bool) -> list[grpc.aio.ServerInterceptor]:
    """Where callers must show certificates: ends the calls of those whose certificates hold no longer.

    Raises ``FatalError`` for files that cannot be used.
    """
    tls = settings.tls
    if tls.tls_ca_file is None or not requires_client_certificate(tls, internal=internal):
        return []
    from services.runtime.trust import CRL_FLAG, Trust, watched_authorities

    authorities = watched_authorities(tls.tls_ca_file, tls.tls_crl_file)
    for issuer in authorities.value.strangers:
        raise FatalError(
            f"{CRL_FLAG}: the list of {issuer} is signed by no authority of --tls-ca-file: put its signer there, too, "
            "or take the list out"
        )
    return [Gate(Trust(authorities).admit)]


def dialling_credentials(settings: ServiceSettings) -> PeerCredentials:
    """What a service dials its peers with. Raises ``FatalError`` for files that cannot be used."""
    tls, token_file = settings.tls, settings.peers.service_token_file
    if tls.tls_ca_file is None and token_file is None:
        return PLAIN
    return peer_credentials(
        tls=tls.tls_ca_file is not None,
        ca_file=tls.tls_ca_file,
        cert_file=tls.tls_cert_file,
        key_file=tls.tls_key_file,
        token_flag=_TOKEN_FLAG,
        token_file=token_file,
        least_token=LEAST_SERVICE_TOKEN,
    )


def service_gate(
    settings: EngineServiceSettings | DetokenizerSettings,
    service: ServiceDescriptor,
    roles: Mapping[str, Collection[Role]],
) -> list[grpc.aio.ServerInterceptor]:
    """The gates of a service that services alone may call; none where nothing is asked of callers.

    ``roles``: who may call each of the methods of ``service``.
    """
    required = requires_client_certificate(settings.tls, internal=True)
    token_file = settings.peers.service_token_file
    tokens = None if token_file is None else watched_tokens(_TOKEN_FLAG, token_file, least_length=LEAST_SERVICE_TOKEN)
    if not required and tokens is None:
        return []
    identities = Identities(settings.callee.service_identities) if required else None
    methods = {f"/{service.full_name}/{method.name}": roles[method.name] for method in service.methods}
    return [*certificate_gate(settings, internal=True), Gate(ServiceIdentity(identities, tokens, methods).admit)]
