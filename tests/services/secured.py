"""A ring whose every link is mutual TLS: three real processes on TCP, with certificates made for the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from services.commands.certs import replace_file
from services.runtime.authority import Authority
from tests.ring import MODEL, ROOT, START_TIMEOUT

HOSTS = ("localhost", "127.0.0.1")
HOUR = timedelta(hours=1)


@dataclass
class Certificates:
    """An authority, and what it issued into a folder."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority.make("test", valid=HOUR))

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "ca.pem").write_bytes(self.authority.certificate)

    def issue(self, role: str, *, age: timedelta = timedelta(0), name: str | None = None) -> None:
        """(Again) a certificate for an hour, that began ``age`` ago."""
        begin = datetime.now(UTC) - age
        issued = self.authority.issue(role, hosts=HOSTS, uri=f"spiffe://ringline/{role}", begin=begin, end=begin + HOUR)
        replace_file(self.folder / f"{name or role}-key.pem", issued.key, 0o600)
        replace_file(self.folder / f"{name or role}.pem", issued.certificate, 0o644)

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def flags(self, role: str) -> list[str]:
        files = {"cert": role, "key": f"{role}-key", "ca": "ca"}
        return [f"--tls-{flag}-file={self.path(name)}" for flag, name in files.items()]

    def credentials(self, name: str | None = None) -> grpc.ChannelCredentials:
        """Of a client that believes this authority, and shows the certificate ``name``."""
        shown = (None, None) if name is None else (self._read(f"{name}-key"), self._read(name))
        return grpc.ssl_channel_credentials(self.authority.certificate, *shown)

    def serial(self, address: str, name: str) -> str:
        """Of the certificate that a server shows to a new connection; ``name`` is shown to it."""
        context = ssl.create_default_context(cafile=self.path("ca"))
        context.load_cert_chain(self.path(name), self.path(f"{name}-key"))
        context.set_alpn_protocols(["h2"])
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=20)
        with context.wrap_socket(plain, server_hostname=host) as connection:
            shown = connection.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])

    def _read(self, name: str) -> bytes:
        return Path(self.path(name)).read_bytes()


@dataclass
class Service:
    """A process of a ring."""

    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    def records(self) -> list[dict[str, object]]:
        """What it has logged: gRPC's own lines are not among them."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def start_service(folder: Path, name: str, *flags: str) -> Service:
    """Start a service on a free port and wait until it serves."""
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "services.cli", name, "--port=0", "--no-metrics", "--log-format=json"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--name={name}-0", *flags],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    service = Service(process, log)
    end = time.monotonic() + START_TIMEOUT
    while not service.address:
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(f"{name} did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.05)
        service.address = next((str(line["address"]) for line in service.records() if line["event"] == "serving"), "")
    return service


def stop_services(services: Iterable[Service]) -> None:
    """End them as an operator would."""
    for service in services:
        service.process.send_signal(signal.SIGTERM)
    for service in services:
        try:
            assert service.process.wait(30) == 0
        finally:
            service.process.kill()


@dataclass
class SecuredRing:
    """What the tests of it share."""

    certificates: Certificates
    engine: Service
    detokenizer: Service
    processor: Service


def start_secured(folder: Path) -> SecuredRing:
    """Start one; the engine and the detokenizer let in services alone."""
    certificates = Certificates(folder)
    for role in ("engine", "detokenizer", "processor", "operator", "client"):
        certificates.issue(role)
    engine = start_service(folder, "engine", str(MODEL), "--kv-cache-memory-bytes=64MiB", *certificates.flags("engine"))
    engines = f"--engines={engine.address}"
    detokenizer = start_service(folder, "detokenizer", engines, *certificates.flags("detokenizer"))
    processor = start_service(
        folder, "processor", engines, f"--detokenizers={detokenizer.address}", *certificates.flags("processor")
    )
    return SecuredRing(certificates, engine, detokenizer, processor)
