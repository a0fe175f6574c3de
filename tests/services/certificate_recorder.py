"""A port that asks whoever connects for a certificate, remembers which it was shown, and hangs up."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Self

from tests.services.secured_ring import Certificates

SECONDS = 60.0


class CertificateRecorder:
    """Passes for an engine or a detokenizer as far as the handshake."""

    def __init__(self, certificates: Certificates) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.path("engine"), certificates.path("engine-key"))
        self._context.load_verify_locations(certificates.path("ca"))
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.set_alpn_protocols(["h2"])
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._shown: set[int] = set()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._answer, daemon=True)

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # closing alone would not wake who waits for a connection
        self._listening.close()
        self._thread.join(SECONDS)

    def wait_for(self, serial: int) -> None:
        """Until a certificate of that number was shown."""
        with self._news:
            assert self._news.wait_for(lambda: serial in self._shown, SECONDS), f"{serial} not in {self._shown}"

    def _answer(self) -> None:
        while True:
            try:
                plain, _ = self._listening.accept()
            except OSError:  # the end
                return
            try:
                plain.settimeout(SECONDS)
                with self._context.wrap_socket(plain, server_side=True) as connection:
                    shown = connection.getpeercert()
            except OSError:  # whoever dialled hung up first, or shows nothing
                continue
            assert shown is not None
            with self._news:
                self._shown.add(int(str(shown["serialNumber"]), 16))
                self._news.notify_all()
