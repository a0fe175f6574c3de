"""Which hosts and addresses pictures may be fetched from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
"""What resolvers take: they raise errors of their own for empty and long labels."""
_PORTS = {"http": 80, "https": 443}
_TRANSLATED = ip_network("64:ff9b::/96")
"""Addresses of IPv6 that a gateway translates to those of IPv4 in their last 32 bits."""
_IN_URL = re.compile(r"[\x21-\x7e]+")

Address = IPv4Address | IPv6Address


class UrlError(ValueError):
    """A URL that nothing is fetched from; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads."""

    scheme: str
    host: str
    """In lower case, without brackets."""
    port: int
    path: str
    """With the query."""

    @property
    def authority(self) -> str:
        """The header ``host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def target_of(url: str) -> Target:
    """Where a URL leads. Raises ``UrlError``."""
    if not url.isascii():
        url = url.encode().decode("latin-1")
        url = "".join(one if one.isascii() else f"%{ord(one):02X}" for one in url)
    if not _IN_URL.fullmatch(url) or "\\" in url:
        raise UrlError("has characters that no URL has")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise UrlError(f"is no URL: {error}") from None
    if parts.scheme not in _PORTS:
        raise UrlError("is no http or https URL")
    if not host:
        raise UrlError("names no host")
    if "@" in parts.netloc:
        raise UrlError("has a name or password, which are not sent")
    if not _NAME.fullmatch(host) and literal(host) is None:
        raise UrlError("names no host that can be resolved")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, _PORTS[parts.scheme] if port is None else port, path)


def literal(host: str) -> Address | None:
    """The address that a host is, if it is one."""
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts of ``--allowed-media-hosts``: names, ``*.`` before a name for those below it, ``*`` for all; with
    ``:port`` for another port than the scheme's.
    """

    entries: tuple[str, ...]

    def allows(self, target: Target) -> bool:
        """Whether pictures may be fetched there, as far as its name says."""
        return any(self._matches(entry, target) for entry in self.entries)

    def names_address(self, target: Target) -> bool:
        """Whether the target is an address that is among the entries: then it may be a private one."""
        return literal(target.host) is not None and any(
            split_entry(entry)[0] == target.host and self._matches(entry, target) for entry in self.entries
        )

    @staticmethod
    def _matches(entry: str, target: Target) -> bool:
        host, port = split_entry(entry)
        if target.port != (_PORTS[target.scheme] if port is None else port):
            return False
        if host.startswith("*."):
            return target.host.endswith(host[1:]) and literal(target.host) is None
        return host in ("*", target.host)


def split_entry(entry: str) -> tuple[str, int | None]:
    """Host, in lower case, and port of an entry, whose form the options have checked."""
    host, port = entry.lower(), ""
    if not host.endswith("]") and ":" in host:
        host, _, port = host.rpartition(":")
    return host.strip("[]").rstrip("."), int(port) if port else None


def is_public(address: Address) -> bool:
    """Whether an address is anybody's on the internet: not this machine's, nor of a network of its own."""
    if isinstance(address, IPv6Address):
        last = IPv4Address(int(address) & 0xFFFFFFFF)
        if address.ipv4_mapped is not None or address in _TRANSLATED:
            return is_public(last)
        if any(one is not None and not is_public(one) for one in (address.sixtofour, *(address.teredo or ()))):
            return False
        if address.is_site_local or int(address) >> 32 == 0:  # :: and what was IPv4-compatible
            return False
    special = address.is_multicast or address.is_reserved or address.is_loopback or address.is_link_local
    return address.is_global and not special and not address.is_unspecified and not address.is_private


def public_address(text: str) -> Address:
    """The address of a resolver's answer. Raises ``UrlError`` unless it is public."""
    address = literal(text.partition("%")[0])
    if address is None or "%" in text or not is_public(address):
        raise UrlError("has an address within a private network, or of this machine")
    return address


def hosts_text(entries: Sequence[str]) -> str:
    """The entries for a message."""
    return ", ".join(entries[:8]) + (", …" if len(entries) > 8 else "")
