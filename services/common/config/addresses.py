"""The default ports, and addresses at which services are dialed: ``host:port``, ``[v6]:port`` or ``unix:path``."""

from __future__ import annotations

import ipaddress

from services.common.config.options import SettingError

PROCESSOR_PORT = 50051
ENGINE_PORT = 50061
DETOKENIZER_PORT = 50071
GATEWAY_PORT = 8000
METRICS_PORT_OFFSET = 10000

MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket on Linux: sun_path without its terminating zero."""


def default_metrics_port(port: int, room: int = 0) -> int:
    """The default metrics port of the service at ``port``, with room for ``room`` more ports above it."""
    above = port + METRICS_PORT_OFFSET
    return above if above + room <= 65535 else port - METRICS_PORT_OFFSET


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_addresses(option_name: str, addresses: tuple[str, ...]) -> None:
    """Raise ``SettingError`` unless there is at least one address and each is ``host:port`` or ``unix:path``."""
    if not addresses:
        raise SettingError(
            option_name, ",".join(addresses), "at least one address such as host:port, [v6]:port or unix:path"
        )
    for address in addresses:
        if not valid_address(address):
            raise SettingError(option_name, address, "addresses like host:port, [v6]:port or unix:path")


def valid_address(address: str) -> bool:
    """Whether ``address`` is ``host:port``, ``[v6]:port`` or ``unix:path``."""
    if address.startswith("unix:"):
        return 1 <= len(address.removeprefix("unix:").encode()) <= MAX_SOCKET_PATH_BYTES
    host, colon, port = address.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False
    if not (host and colon and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        return False
    try:
        host.encode("idna")  # DNS refuses the same names: labels have 1 to 63 characters
    except UnicodeError:
        return False
    return True


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``host:port`` or ``[v6]:port``."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def hosts_of(addresses: tuple[str, ...]) -> list[str]:
    """Hosts of the TCP addresses."""
    return [host_and_port(address)[0] for address in addresses if not address.startswith("unix:")]


def is_dns_name(address: str) -> bool:
    """Whether the host of a valid address is a name, not an IP address or a socket's path."""
    if address.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(host_and_port(address)[0])
    except ValueError:
        return True
    return False
