"""A client's connection security: TLS, bearer tokens, and which servers are dialled through a proxy."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from ringline.channel import CHANNEL_OPTIONS, metadata_pairs
from ringline.errors import invalid

_CERTIFICATE = b"CERTIFICATE-----"
_TOKEN = re.compile(r"[\x21-\x7e]+")
_USE_PROXY = "grpc.enable_http_proxy"
Pem = str | os.PathLike[str] | bytes
"""The path of a PEM file, or its contents as bytes."""


@dataclass(frozen=True, slots=True)
class Security:
    """A client's security options, as documented at ``Client``."""

    credentials: grpc.ChannelCredentials | None = None
    tls: bool = False
    ca: Pem | None = None
    cert: Pem | None = None
    key: Pem | None = None
    server_name: str | None = None
    token: str | Callable[[], str] | None = None
    proxy: bool = False
    token_name: str = "token"
    """Where the token comes from, for errors."""

    def __post_init__(self) -> None:
        """Raises InvalidRequest for options that do not fit together."""
        if (self.cert is None) != (self.key is None):
            raise invalid(
                "cert" if self.key is None else "key",
                f"given without {'key' if self.key is None else 'cert'}: expected both or neither",
            )
        files = self.tls or self.ca is not None or self.cert is not None
        if self.credentials is not None and files:
            raise invalid("credentials", "cannot be combined with tls, ca, cert and key: expected one or the other")
        if self.server_name is not None and not self.encrypted:
            raise invalid("server_name", "used with TLS only: add tls or ca, or leave it out")
        if isinstance(self.token, str) and not _TOKEN.fullmatch(self.token):
            raise invalid(self.token_name, "no token: expected printable ASCII characters without blanks")

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.credentials is not None or self.tls or self.ca is not None or self.cert is not None

    def check_addresses(self, addresses: Sequence[str]) -> None:
        """Raise InvalidRequest if a token would be sent to another machine unencrypted."""
        exposed = [] if self.encrypted or self.token is None else [each for each in addresses if not is_local(each)]
        if exposed:
            raise invalid(self.token_name, f"it would be sent to {exposed[0]} unencrypted: add tls or ca")

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials for a new channel, from the files' current contents; None for plaintext.

        Raises InvalidRequest for a file that cannot be read, or a ``ca`` without certificates.
        """
        if self.credentials is not None or not self.encrypted:
            return self.credentials
        authorities = _read("ca", self.ca)
        if authorities is not None and _CERTIFICATE not in authorities:
            raise invalid("ca", f"{_name_of(self.ca)} contains no PEM certificate: expected at least one")
        return grpc.ssl_channel_credentials(authorities, _read("key", self.key), _read("cert", self.cert))

    def channel(self, address: str) -> grpc.Channel:
        """A new channel to ``address``; it connects when first used."""
        credentials, options = self.channel_credentials(), self._channel_options(address)
        if credentials is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, credentials, options=options)

    def aio_channel(self, address: str) -> grpc.aio.Channel:
        """Like ``channel``, for asyncio."""
        credentials, options = self.channel_credentials(), self._channel_options(address)
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def _channel_options(self, address: str) -> tuple[tuple[str, int | str], ...]:
        options = CHANNEL_OPTIONS
        if self.proxy and not is_local(address):
            options = (*(option for option in options if option[0] != _USE_PROXY), (_USE_PROXY, 1))
        if self.server_name is not None:
            options = (*options, ("grpc.ssl_target_name_override", self.server_name))
        return options

    def files_stamp(self) -> tuple[tuple[int, int], ...]:
        """Modification time (ns) and inode of each file; they change when it is replaced. (0, 0) for a missing file."""
        return tuple(_stamp(pem) for pem in (self.ca, self.cert, self.key) if pem is not None and not _is_bytes(pem))


class CallMetadata:
    """The metadata of every call, including the bearer token."""

    def __init__(self, metadata: Mapping[str, str] | None, token: str | Callable[[], str] | None) -> None:
        """``token``: a function is called for each RPC."""
        self._pairs = metadata_pairs(metadata)
        self._token = token

    def extended(self, metadata: Mapping[str, str]) -> CallMetadata:
        """A copy with further pairs, which replace those of the same names; ``authorization`` replaces the token."""
        other = CallMetadata(metadata, None)
        given = {key for key, _ in other._pairs}
        other._pairs += tuple(pair for pair in self._pairs if pair[0] not in given)
        other._token = None if "authorization" in given else self._token
        return other

    def __call__(self) -> tuple[tuple[str, str], ...]:
        """The metadata of the next call."""
        if self._token is None:
            return self._pairs
        token = self._token if isinstance(self._token, str) else self._token()
        return (*self._pairs, ("authorization", f"Bearer {token}"))


def _is_bytes(pem: Pem) -> bool:
    return isinstance(pem, bytes)


def _name_of(pem: Pem | None) -> str:
    return "the text given" if pem is None or isinstance(pem, bytes) else os.fspath(pem)


def _read(name: str, pem: Pem | None) -> bytes | None:
    if pem is None or isinstance(pem, bytes):
        return pem
    try:
        return Path(pem).read_bytes()
    except OSError as error:
        raise invalid(name, f"{os.fspath(pem)} cannot be read: {error.strerror}") from None


def _stamp(pem: Pem) -> tuple[int, int]:
    assert not isinstance(pem, bytes)
    try:
        info = Path(pem).stat()
    except OSError:
        return (0, 0)
    return (info.st_mtime_ns, info.st_ino)


def is_local(address: str) -> bool:
    """Whether the address, or each that a target of ``ipv4:`` or ``ipv6:`` lists, is on this machine."""
    if address.startswith(("ipv4:", "ipv6:")):
        return all(map(_is_local_host, address[len("ipv4:") :].split(",")))
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    return _is_local_host(address)


def _is_local_host(address: str) -> bool:
    host = address.rstrip("/").rpartition("/")[2].lower().removeprefix("dns:")
    if host.count(":") == 1 or host.startswith("["):
        host = host.rpartition(":")[0]
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
