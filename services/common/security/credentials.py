"""From options to credentials: those a service listens with, requires of callers, and dials peers with.

Files may be replaced without a restart: they are checked for changes at every new connection; open connections keep
their certificates. A unix socket has no TLS: the permissions of its file decide who may connect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from services.common.config.errors import FatalError
from services.common.config.security_settings import requires_client_certificate
from services.common.config.settings import DetokenizerSettings, EngineServiceSettings, ServiceSettings
from services.common.rpc.grpc_options import GrpcOptions
from services.common.rpc.handlers import Authorize
from services.common.security.authorization import ServiceAuthorizer
from services.common.security.file_reload import ReloadedFile
from services.common.security.tokens import bearer_metadata, reloaded_tokens
from services.ring.roles import Identities, Role

if TYPE_CHECKING:  # cryptography takes a tenth of a second to load, and plain-text processes do not need it
    from services.common.security.certificates import TlsFiles

MIN_SERVICE_TOKEN_LENGTH = 32
"""Characters; at 4 bits each they have 128 bits, too many to guess."""
_TOKEN_FLAG = "--service-token-file"
_CALL_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
"""Names of a channel's methods that make calls."""


class PeerCredentials:
    """The credentials a process dials with. Reads certificates again for each channel, the token for each call."""

    def __init__(self, tls: Callable[[], TlsFiles] | None = None, token: Callable[[], str] | None = None) -> None:
        """Without ``tls`` channels are plain text; without ``token`` calls carry none."""
        self._tls = tls
        self._token = token

    @property
    def authorities(self) -> bytes | None:
        """The trusted authorities in PEM; None without TLS, or if the system's are trusted."""
        return None if self._tls is None else self._tls().authorities

    def open(self, address: str, server_name: str | None, options: GrpcOptions) -> grpc.aio.Channel:
        """A channel to ``address``; the server's certificate must be for ``server_name``, or for the address's host."""
        if self._tls is None or address.startswith("unix:"):
            channel = grpc.aio.insecure_channel(address, options=options)
        else:
            if server_name is not None:
                options = (*options, ("grpc.ssl_target_name_override", server_name))
            files = self._tls()
            credentials = grpc.ssl_channel_credentials(files.authorities, files.key, files.chain)
            channel = grpc.aio.secure_channel(address, credentials, options=options)
        return channel if self._token is None else cast("grpc.aio.Channel", _TokenChannel(channel, self._token))


PLAINTEXT = PeerCredentials()
"""Plain text, and no token."""


class _TokenChannel:
    """A channel whose calls carry a bearer token.

    Not an interceptor: with one, grpc.aio passes each message of a stream through another queue and task. Not call
    credentials: gRPC has none for plain text, which links on one machine use.
    """

    def __init__(self, channel: grpc.aio.Channel, token: Callable[[], str]) -> None:
        self._channel = channel
        self._token = token

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        return partial(self._make_call, found) if name in _CALL_KINDS else found

    async def __aenter__(self) -> _TokenChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._channel.__aexit__(*error)

    def _make_call(self, make: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
        call = make(*arguments, **options)

        def begin(*arguments: Any, metadata: Any = (), **options: Any) -> Any:
            return call(*arguments, metadata=(*(metadata or ()), bearer_metadata(self._token())), **options)

        return begin


def peer_credentials(
    *,
    tls: bool,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    tokens: ReloadedFile[tuple[str, ...]] | None = None,
    token: str | None = None,
) -> PeerCredentials:
    """Credentials from files; raises ``FatalError`` for one that cannot be used.

    Without ``tls`` channels are plain text, and the files are not read; without ``ca_file`` the public authorities are
    trusted. The first of ``tokens`` is sent; without them, ``token``.
    """
    files = reloaded_tls_files(ca_file=ca_file, cert_file=cert_file, key_file=key_file) if tls else None
    return PeerCredentials(None if files is None else lambda: files.value, _token_source(tokens, token))


def _token_source(tokens: ReloadedFile[tuple[str, ...]] | None, token: str | None) -> Callable[[], str] | None:
    if tokens is not None:
        return lambda: tokens.value[0]
    return None if token is None else lambda: token


def own_server_credentials(cert_file: str, key_file: str) -> tuple[PeerCredentials, str]:
    """The credentials ``ringline serve`` dials its own processor with, and the name in the processor's certificate.

    They trust this one certificate, whatever authority issued it.
    """
    from services.common.security.certificates import certificate_host

    files = reloaded_tls_files(cert_file=cert_file, key_file=key_file, ca_file=None).value
    assert files.chain is not None
    own = replace(files, authorities=files.chain)
    return PeerCredentials(lambda: own), certificate_host(files.chain)


def reloaded_tls_files(*, cert_file: str | None, key_file: str | None, ca_file: str | None) -> ReloadedFile[TlsFiles]:
    """The files that are not None; raises ``FatalError`` for an unusable one."""
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


def listening_credentials(settings: ServiceSettings, *, internal: bool) -> grpc.ServerCredentials | None:
    """The credentials a service listens with; None for plain text. ``internal``: whether only services call it.

    Raises ``FatalError`` for files that cannot be used.
    """
    tls = settings.tls
    if tls.tls_cert_file is None:
        return None
    required = requires_client_certificate(tls, internal=internal)
    files = reloaded_tls_files(
        cert_file=tls.tls_cert_file, key_file=tls.tls_key_file, ca_file=tls.tls_ca_file if required else None
    )
    return server_credentials(files, require_client_certificate=required)


def certificate_authorizers(settings: ServiceSettings, *, internal: bool) -> list[Authorize]:
    """Authorizers that refuse and end calls with expired or revoked certificates; none if callers need no certificate.

    Raises ``FatalError`` for files that cannot be used.
    """
    tls = settings.tls
    if tls.tls_ca_file is None or not requires_client_certificate(tls, internal=internal):
        return []
    from services.common.security.certificate_checker import CRL_FLAG, CertificateChecker, reloaded_authorities

    authorities = reloaded_authorities(tls.tls_ca_file, tls.tls_crl_file)
    for issuer in authorities.value.unknown_issuers:
        raise FatalError(
            f"{CRL_FLAG}: no authority of --tls-ca-file signed the list of {issuer}: add its signer, or remove the list"
        )
    return [CertificateChecker(authorities).authorize]


def dialling_credentials(settings: ServiceSettings) -> PeerCredentials:
    """The credentials a service dials its peers with; raises ``FatalError`` for files that cannot be used."""
    tls, tokens = settings.tls, _service_tokens(settings)
    if tls.tls_ca_file is None and tokens is None:
        return PLAINTEXT
    return peer_credentials(
        tls=tls.tls_ca_file is not None,
        ca_file=tls.tls_ca_file,
        cert_file=tls.tls_cert_file,
        key_file=tls.tls_key_file,
        tokens=tokens,
    )


def _service_tokens(settings: ServiceSettings) -> ReloadedFile[tuple[str, ...]] | None:
    path = settings.peers.service_token_file
    return None if path is None else reloaded_tokens(_TOKEN_FLAG, path, min_length=MIN_SERVICE_TOKEN_LENGTH)


def service_authorizers(
    settings: EngineServiceSettings | DetokenizerSettings,
    service: ServiceDescriptor,
    roles: Mapping[str, Collection[Role]],
) -> list[Authorize]:
    """The authorizers of a service that only services may call; none if nothing is required of callers.

    ``roles``: the roles that may call each method of ``service``, keyed by the method's name.
    """
    required, tokens = requires_client_certificate(settings.tls, internal=True), _service_tokens(settings)
    if not required and tokens is None:
        return []
    identities = Identities(settings.service_auth.service_identities) if required else None
    methods = {f"/{service.full_name}/{method.name}": roles[method.name] for method in service.methods}
    return [
        *certificate_authorizers(settings, internal=True),
        ServiceAuthorizer(identities, tokens, methods).authorize,
    ]
