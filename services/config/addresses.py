"""Addresses (``host:port``, ``[v6]:port`` or ``unix:path``) and names of processes, and the incarnation of a life."""

from __future__ import annotations

import ipaddress
import re
import secrets
import time

from services.config.options import SettingError
from services.ring.identity import PEER_NAME

LONGEST_UDS = 107
"""Bytes of a unix socket's path on Linux (sun_path, without its end)."""
_RANDOM_BITS = 20


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_addresses(option_name: str, addresses: tuple[str, ...]) -> None:
    """Raise ``SettingError`` unless there is at least one address and each is ``host:port`` or ``unix:path``."""
    if not addresses:
        raise SettingError(option_name, ",".join(addresses), "at least one address")
    for address in addresses:
        if not valid_address(address):
            raise SettingError(option_name, address, "addresses like host:port, [v6]:port or unix:path")


def valid_address(address: str) -> bool:
    """Whether ``address`` is one that a service can be dialled at."""
    if address.startswith("unix:"):
        return 1 <= len(address.removeprefix("unix:").encode()) <= LONGEST_UDS
    host, colon, port = address.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False
    if not (host and colon and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        return False
    try:
        host.encode("idna")  # what cannot be a name is none for DNS either: labels of 1 to 63 characters
    except UnicodeError:
        return False
    return True


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``host:port`` or ``[v6]:port``."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def hosts_of(addresses: tuple[str, ...]) -> list[str]:
    """Of those that are no paths of sockets."""
    return [host_and_port(address)[0] for address in addresses if not address.startswith("unix:")]


def is_dns_name(address: str) -> bool:
    """Whether the host of a valid address is a name, not an IP address (or a socket's path)."""
    if address.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(host_and_port(address)[0])
    except ValueError:
        return True
    return False


def valid_name(name: str) -> bool:
    """Whether ``name`` may stand in a Hello."""
    return PEER_NAME.fullmatch(name) is not None


def default_name(service: str, hostname: str, place: str) -> str:
    """A name for a process that was given none: equal after a restart, different from its neighbours'."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{service}-{hostname}-{place}")[:128]


def new_incarnation() -> int:
    """A number greater than that of every earlier life of this process.

    Milliseconds since 1970 above 20 random bits, so that two lives that begin in one millisecond differ too.
    """
    return (time.time_ns() // 1_000_000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
