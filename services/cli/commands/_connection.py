"""A client command's connection to a server, and Ctrl-C while an answer streams over it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType
from typing import Any

import click
import ringline
from ringline.security import is_local

from services.common.config.variable_names import TOKEN_VARIABLE
from services.common.security.credentials import PeerCredentials, peer_credentials
from services.common.security.file_reload import ReloadedFile
from services.common.security.tokens import is_token, reloaded_tokens


@contextmanager
def closed_by_interrupt(stream: ringline.Stream) -> Iterator[None]:
    """Ctrl-C closes the stream, and ``KeyboardInterrupt`` is raised at the end of the block.

    Raised at an arbitrary place, it could leave one of gRPC's locks held forever. A second Ctrl-C raises it at once.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    pressed: list[bool] = []
    pressed_or_done: SimpleQueue[bool] = SimpleQueue()  # the only queue that a signal handler may put into

    def press(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)
        pressed_or_done.put(True)

    def close() -> None:
        if pressed_or_done.get():
            stream.close()

    threading.Thread(target=close, daemon=True).start()
    previous = signal.signal(signal.SIGINT, press)
    try:
        yield
    except ringline.RingError:
        if not pressed:
            raise
    finally:
        signal.signal(signal.SIGINT, previous)
        pressed_or_done.put(False)
    if pressed:
        raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Connection:
    """How a command connects: TLS files and token."""

    tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_server_name: str | None
    token_file: str | None

    @property
    def encrypted(self) -> bool:
        """Whether to use TLS. A certificate alone does not imply it: its variable may have been set for a service."""
        return self.tls or self.tls_ca_file is not None

    def for_client(self) -> dict[str, Any]:
        shown = {"cert": self.tls_cert_file, "key": self.tls_key_file} if self.encrypted else {}
        tokens, name = self._tokens(), self.tls_server_name if self.encrypted else None
        token = self._token_of_environment() if tokens is None else tokens.value[0]
        return {"tls": self.tls, "ca": self.tls_ca_file, **shown, "server_name": name, "token": token}

    def credentials(self, address: str) -> PeerCredentials:
        """To dial ``address`` with. Raises ``UsageError`` for a token that would cross a network in clear."""
        token, sends = self._token_of_environment(), self.token_file is not None
        if (sends or token is not None) and not self.encrypted and not is_local(address):
            problem = f"it would be sent to {address} unencrypted: add --tls or --tls-ca-file"
            raise click.UsageError(f"{self.token_source}: {problem}")
        return peer_credentials(
            tls=self.encrypted,
            ca_file=self.tls_ca_file,
            cert_file=self.tls_cert_file,
            key_file=self.tls_key_file,
            tokens=self._tokens(),
            token=token,
        )

    @property
    def token_source(self) -> str:
        """Where the token comes from, for errors."""
        return "--token-file" if self.token_file is not None else TOKEN_VARIABLE

    def _token_of_environment(self) -> str | None:
        """As the client library takes it; a file goes before it."""
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token or self.token_file is not None:
            return None
        if not is_token(token):
            raise click.UsageError(f"{TOKEN_VARIABLE}: no token: expected printable ASCII characters without blanks")
        return token

    def _tokens(self) -> ReloadedFile[tuple[str, ...]] | None:
        return None if self.token_file is None else reloaded_tokens("--token-file", self.token_file)
