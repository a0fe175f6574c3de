"""What this process shows to the servers that it dials, and what it asks of them: certificates, and a bearer token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import grpc.aio

from services.runtime.tls import channel_credentials, tls_files
from services.runtime.tokens import bearer, watched_tokens
from services.runtime.transport import Options

if TYPE_CHECKING:
    from services.runtime.certificates import TlsFiles


class PeerCredentials:
    """Read anew for each channel (certificates) and each call (the token)."""

    def __init__(self, tls: Callable[[], TlsFiles] | None = None, token: Callable[[], str] | None = None) -> None:
        """Without ``tls`` channels are plain text. ``token`` gives what to show with a call."""
        self._tls = tls
        self._token = token

    @property
    def authorities(self) -> bytes | None:
        """Whose certificates are believed now, in PEM form; None where no files say so."""
        return None if self._tls is None else self._tls().authorities

    def open(self, address: str, server_name: str | None, options: Options) -> grpc.aio.Channel:
        """A channel to ``address``; ``server_name`` is whose certificate it must show, else the address's own host."""
        if self._tls is None or address.startswith("unix:"):
            channel = grpc.aio.insecure_channel(address, options=options)
        else:
            if server_name is not None:
                options = (*options, ("grpc.ssl_target_name_override", server_name))
            channel = grpc.aio.secure_channel(address, channel_credentials(self._tls()), options=options)
        return channel if self._token is None else cast("grpc.aio.Channel", _Showing(channel, self._token))


PLAIN = PeerCredentials()
"""Plain text, and no token."""


class _Showing:
    """A channel whose calls show a token.

    Not an interceptor: grpc.aio passes each message of an intercepted stream through a queue and a task more. Not call
    credentials: gRPC has none for plain text, which is what a link on one machine is.
    """

    def __init__(self, channel: grpc.aio.Channel, token: Callable[[], str]) -> None:
        self._channel = channel
        self._token = token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> _Showing:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._channel.__aexit__(*error)

    def unary_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._shown(self._channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._shown(self._channel.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._shown(self._channel.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._shown(self._channel.stream_stream(*arguments, **options))

    def _shown(self, call: Any) -> Callable[..., Any]:
        def begin(*arguments: Any, metadata: Any = (), **options: Any) -> Any:
            return call(*arguments, metadata=(*(metadata or ()), bearer(self._token())), **options)

        return begin


def peer_credentials(
    *,
    tls: bool,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    token_flag: str = "--token-file",
    token_file: str | None = None,
    least_token: int = 1,
) -> PeerCredentials:
    """For the files given; raises ``FatalError`` for one that cannot be used.

    Without ``tls`` channels are plain text, and the first three files are left alone; without ``ca_file`` the public
    authorities are believed. ``least_token``: characters of a token at least.
    """
    files = tls_files(ca_file=ca_file, cert_file=cert_file, key_file=key_file) if tls else None
    tokens = None if token_file is None else watched_tokens(token_flag, token_file, least_length=least_token)
    return PeerCredentials(
        None if files is None else lambda: files.value, None if tokens is None else lambda: tokens.value[0]
    )


def own_credentials(cert_file: str, key_file: str) -> tuple[PeerCredentials, str]:
    """What a process dials a server of its own with, and the name that the server goes by.

    Whoever has these files believes the server that has them, too, whatever authority they are from.
    """
    from services.runtime.certificates import host_of

    files = tls_files(cert_file=cert_file, key_file=key_file, ca_file=None).value
    assert files.chain is not None
    own = replace(files, authorities=files.chain)
    return PeerCredentials(lambda: own), host_of(files.chain)
