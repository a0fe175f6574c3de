"""The options of the three services. The engine's own options are declared in ``engine_core.config``.

Each is declared once, here, and becomes a flag, a ``RINGLINE_…`` variable and an entry of ``docs/configuration.md``
(see ``services.config.options``). An unusable value raises ``SettingError`` at construction. ``None`` means "derive
the value".
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from services.config.addresses import (
    MAX_SOCKET_PATH_BYTES,
    check_addresses,
    hosts_of,
    join_address,
)
from services.config.options import SettingError, check_section, option
from services.config.security_settings import (
    ClientAuthSettings,
    PeerSettings,
    ServiceAuthSettings,
    TlsSettings,
    check_dialling,
    check_internal,
    check_listening,
    check_revocations,
)
from services.ring.identity import PEER_NAME
from services.ring.outbox import MAX_UNREAD_BYTES
from services.ring.poison import MAX_CRASH_RESUBMITS

PROCESSOR_PORT = 50051
ENGINE_PORT = 50061
DETOKENIZER_PORT = 50071
METRICS_PORT_OFFSET = 10000

_METADATA_KEY = re.compile(r"[a-z0-9_.-]+(?<!-bin)")
"""gRPC metadata keys of text values; those of binary values end with -bin."""


class _Section:
    """Checks its own options when constructed."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class ServerSettings(_Section):
    """Where a service listens, and how it treats its peers."""

    host: str = option("127.0.0.1", "Interface to listen on; 0.0.0.0 accepts connections from other machines.")
    port: int = option(0, "TCP port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    uds: str | None = option(None, "Path of a unix socket to listen on, instead of host and port.")
    name: str | None = option(
        None,
        "Stable name of this process in the ring: 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'. "
        "Default: the service, the machine's name and the port.",
    )
    max_message_bytes: int = option(
        4 * 2**20,
        "Largest gRPC message accepted; a larger one ends its stream.",
        minimum=2 * 2**20,  # twice the largest frame of a link
        maximum=2**31 - 1,
        unit="bytes",
    )
    max_connections: int = option(
        4096,
        "Connections at a time; more are closed as they come. When less than a quarter is free, idle connections of "
        "the clients with the most are closed.",
        minimum=1,
        maximum=2**31 - 1,
    )
    max_connections_per_client: int = option(
        512,
        "Connections with calls that one client, which is an IP address, may have; calls on more are refused with "
        "RESOURCE_EXHAUSTED.",
        minimum=1,
        maximum=2**31 - 1,
    )
    max_streams_per_connection: int = option(
        1024, "Calls at a time on one connection; clients queue more.", minimum=1, maximum=2**31 - 1
    )
    max_calls: int = option(
        8192,
        "Calls at a time. At the limit, the client with the most calls loses its newest to a client with fewer; a "
        "client with as many is refused. Both get RESOURCE_EXHAUSTED.",
        minimum=1,
        maximum=2**31 - 1,
    )
    connection_idle_timeout: float = option(
        60.0,
        "A connection without a call for this long is closed; clients reconnect at their next call.",
        minimum=0.1,
        maximum=86400,
        unit="seconds",
    )
    memory_budget: int = option(
        2**30,
        "Memory of a processor or detokenizer, and of an engine beyond its model and cache. Above half of it, "
        "connections are closed, first those that hold most bytes of incomplete messages.",
        minimum=128 * 2**20,
        maximum=2**50,
        unit="bytes",
    )
    stall_timeout: float = option(
        30.0,
        "The stream of a peer or client that reads nothing for this long is ended.",
        minimum=0.1,
        maximum=86400,
        unit="seconds",
    )
    drain_grace: float = option(
        30.0,
        "After SIGTERM, how long present requests may go on.",
        minimum=0,
        maximum=86400,
        unit="seconds",
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.name is not None and PEER_NAME.fullmatch(self.name) is None:
            raise SettingError("name", self.name, "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
        if self.uds is not None and not 1 <= len(self.uds.encode()) <= MAX_SOCKET_PATH_BYTES:
            raise SettingError("uds", self.uds, f"a path of 1 to {MAX_SOCKET_PATH_BYTES} bytes")

    @property
    def address(self) -> str:
        """What to bind, as gRPC writes it: ``host:port``, ``[v6]:port`` or ``unix:path``."""
        return join_address(self.host, self.port) if self.uds is None else f"unix:{self.uds}"


@dataclass(frozen=True, slots=True)
class TelemetrySettings(_Section):
    """Logs, metrics and traces."""

    log_level: str = option("info", "Lowest level to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option(
        "auto",
        "json writes one object per line; console is for people; auto is console on a terminal, else json. "
        "For `ringline serve`, auto is console.",
        choices=("auto", "console", "json"),
    )
    metrics: bool = option(True, "Serve /metrics for Prometheus.")
    metrics_port: int | None = option(
        None,
        "Port of /metrics; 0 takes a free one. Default: the service's port + 10000 (− 10000 where that is too high); "
        "none on a unix socket.",
        minimum=0,
        maximum=65535,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "OpenTelemetry collector to send traces to, by gRPC: http://host:port, or https:// for TLS. Needs "
        "ringline-server[tracing]. Default: no traces.",
    )
    traces_sample_ratio: float = option(
        1.0,
        "Share of requests to trace, of those whose caller has not decided that (by a traceparent).",
        minimum=0,
        maximum=1,
    )

    def __post_init__(self) -> None:
        check_section(self)
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise SettingError("otlp_traces_endpoint", endpoint, "http://host:port or https://host:port")


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings that every service has."""

    service: ClassVar[str]
    """processor, engine or detokenizer."""

    server: ServerSettings
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    peers: PeerSettings = field(default_factory=PeerSettings)

    @property
    def name(self) -> str:
        server = self.server
        if server.name is not None:
            return server.name
        place = str(server.port) if server.uds is None else Path(server.uds).stem
        return re.sub(r"[^A-Za-z0-9._-]", "-", f"{self.service}-{socket.gethostname()}-{place}")[:128]

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the metrics endpoint; None if there is none."""
        telemetry, server = self.telemetry, self.server
        if not telemetry.metrics or (telemetry.metrics_port is None and server.uds is not None):
            return None
        host = server.host if server.uds is None else "127.0.0.1"
        if telemetry.metrics_port is not None:
            return host, telemetry.metrics_port
        above = server.port + METRICS_PORT_OFFSET
        return host, 0 if server.port == 0 else above if above <= 65535 else server.port - METRICS_PORT_OFFSET


@dataclass(frozen=True, slots=True)
class DiscoverySettings(_Section):
    """How peers are found."""

    dns_refresh_interval: float = option(
        5.0,
        "How often the names among the peers are resolved by DNS.",
        minimum=0.1,
        maximum=3600,
        unit="seconds",
    )


@dataclass(frozen=True, slots=True)
class ReaderSettings(_Section):
    """Slow readers of streams."""

    max_unread_bytes: int = option(
        MAX_UNREAD_BYTES,
        "A stream is ended when more than this waits for its reader. For all streams together twice as much may wait; "
        "beyond that the stream with the most is ended, of the tenant with the most.",
        minimum=2 * 2**20,  # twice the largest frame
        unit="bytes",
    )


@dataclass(frozen=True, slots=True)
class RolloutSettings(_Section):
    """Replacing engines by engines of another model."""

    max_generations: int = option(
        4,
        "Models served side by side while engines are replaced by engines of another model: each takes the memory of "
        "its tokenizer. An engine of one more model is not linked until another model has no engine and no request "
        "left.",
        minimum=1,
        maximum=64,
    )


@dataclass(frozen=True, slots=True)
class ProcessorSettings(ServiceSettings):
    """The processor."""

    service: ClassVar[str] = "processor"

    server: ServerSettings = field(default_factory=lambda: ServerSettings(port=PROCESSOR_PORT))
    engines: tuple[str, ...] = option(
        (f"127.0.0.1:{ENGINE_PORT}",),
        "The engines, separated by commas: host:port or unix:path. If a host is a name, each of its addresses "
        "is an engine.",
    )
    detokenizers: tuple[str, ...] = option((f"127.0.0.1:{DETOKENIZER_PORT}",), "The detokenizers, like the engines.")
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    auth: ClientAuthSettings = field(default_factory=ClientAuthSettings)
    readers: ReaderSettings = field(default_factory=ReaderSettings)
    max_live_requests: int = option(
        4096, "Live requests of one session; more are refused with RESOURCE_EXHAUSTED.", minimum=1
    )
    max_queued_requests: int = option(
        4096,
        "Requests that may wait for an engine to begin them. One tenant may have at most as many as remain free; more "
        "are refused with RESOURCE_EXHAUSTED.",
        minimum=1,
    )
    max_queue_time: float = option(
        60.0,
        "A request that would wait for an engine longer than this, or than its own time, is refused with "
        "RESOURCE_EXHAUSTED.",
        minimum=0,
        maximum=86400,
        unit="seconds",
    )
    max_connection_age: float = option(
        1800.0,
        "After this, a client makes new calls on another connection, so that new processors get their share of "
        "clients; Sessions get Draining, and calls under way go on.",
        minimum=0.1,
        maximum=31 * 86400,
        unit="seconds",
    )
    tenant_header: str = option(
        "x-ringline-tenant",
        "Metadata key of the tenant's name, as a gateway sets it; calls without it are one tenant. Ignored where "
        "clients authenticate by tokens.",
    )
    patience: float = option(
        60.0,
        "How long a request waits for an engine and a detokenizer, at its start or after it lost one.",
        minimum=0,
        maximum=86400,
        unit="seconds",
    )
    max_crash_resubmits: int = option(
        MAX_CRASH_RESUBMITS,
        "A request that this many engines were computing when they died fails with INTERNAL: it may be the cause.",
        minimum=1,
    )

    def __post_init__(self) -> None:
        check_section(self)
        if not _METADATA_KEY.fullmatch(self.tenant_header) or self.tenant_header.startswith("grpc-"):
            raise SettingError("tenant_header", self.tenant_header, "a metadata key: a-z, 0-9, '_', '-' and '.'")
        check_addresses("engines", self.engines)
        check_addresses("detokenizers", self.detokenizers)
        secrets = [(name, getattr(self.auth, name)) for name in ("auth_token_file", "auth_jwks_file")]
        check_listening(self.tls, self.server.host, self.server.uds, secrets)
        check_revocations(self.tls, internal=False)
        check_dialling(self.tls, self.peers.service_token_file, hosts_of((*self.engines, *self.detokenizers)))


@dataclass(frozen=True, slots=True)
class DetokenizerSettings(ServiceSettings):
    """The detokenizer."""

    service: ClassVar[str] = "detokenizer"

    server: ServerSettings = field(default_factory=lambda: ServerSettings(port=DETOKENIZER_PORT))
    engines: tuple[str, ...] = option(
        (f"127.0.0.1:{ENGINE_PORT}",),
        "The engines, separated by commas: host:port or unix:path. If a host is a name, each of its addresses "
        "is an engine.",
    )
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    readers: ReaderSettings = field(default_factory=ReaderSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    service_auth: ServiceAuthSettings = field(default_factory=ServiceAuthSettings)

    def __post_init__(self) -> None:
        check_section(self)
        check_addresses("engines", self.engines)
        _check_callee(self)
        check_dialling(self.tls, self.peers.service_token_file, hosts_of(self.engines))


@dataclass(frozen=True, slots=True)
class EngineServiceSettings(ServiceSettings):
    """The engine as a service; what it computes and how is ``engine_core.config.EngineConfig``."""

    service: ClassVar[str] = "engine"

    server: ServerSettings = field(default_factory=lambda: ServerSettings(port=ENGINE_PORT))
    orphan_grace: float = option(
        2.0,
        "Requests whose submitter has been gone for this long are cancelled.",
        minimum=0,
        maximum=3600,
        unit="seconds",
    )
    service_auth: ServiceAuthSettings = field(default_factory=ServiceAuthSettings)

    def __post_init__(self) -> None:
        check_section(self)
        _check_callee(self)
        if self.tls.tls_ca_file is not None and self.tls.tls_cert_file is None:
            raise SettingError("tls_ca_file", self.tls.tls_ca_file, "--tls-cert-file with it: an engine dials nobody")


def _check_callee(settings: ServiceSettings) -> None:
    """Checks for the services that only other services call."""
    token_file = settings.peers.service_token_file
    check_listening(settings.tls, settings.server.host, settings.server.uds, [("service_token_file", token_file)])
    check_internal(settings.tls, token_file)
    check_revocations(settings.tls, internal=True)
