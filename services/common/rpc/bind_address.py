"""Checks the address of a server before gRPC binds it: gRPC does not report why binding fails.

gRPC would also take over the socket file of another live process without an error.
"""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path
from typing import Any

from services.common.config.errors import FatalError
from services.common.config.settings import ServerSettings


def check_bindable(settings: ServerSettings, port_flag: str = "--port") -> None:
    """Raise ``FatalError`` if the address is in use or cannot be bound; remove the socket file of a dead process.

    ``port_flag``: the flag for the port, for errors.
    """
    if settings.uds is not None:
        _check_socket_file(Path(settings.uds))
    if settings.private_socket is None:
        _check_port(settings, port_flag)


def remove_socket_file(settings: ServerSettings) -> None:
    """Remove the server's socket file; call it when the server has stopped."""
    if settings.uds is not None:
        Path(settings.uds).unlink(missing_ok=True)


def _check_port(settings: ServerSettings, flag: str) -> None:
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):  # the latter for a label that is too long, or no name at all
        raise FatalError(f"host {host[:100]!r} is not known: choose an interface of this machine with --host") from None
    errors = [_bind_error(family, address, shared=settings.share_port) for family, _, _, _, address in found]
    if any(error is not None and error.errno == errno.EADDRINUSE for error in errors):
        raise FatalError(f"port {port} is in use: choose another with {flag}")
    if None in errors:  # a host name may have several addresses, and one is enough
        return
    if any(error is not None and error.errno == errno.EACCES for error in errors):
        raise FatalError(f"port {port} is for privileged processes: choose one above 1023 with {flag}")
    raise FatalError(f"host {host!r} is not an interface of this machine: choose one with --host")


def _bind_error(family: socket.AddressFamily, address: Any, *, shared: bool) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def _check_socket_file(path: Path) -> None:
    if not path.parent.is_dir():
        raise FatalError(f"there is no directory {path.parent} for the socket: choose another with --uds")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FatalError(f"{path} exists and is not a socket: choose another with --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FatalError(f"{path} cannot be listened on: {error.strerror}") from None
        else:
            raise FatalError(f"{path} is in use: choose another with --uds")
