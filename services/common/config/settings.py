"""The options of the services. The engine's own options are declared in ``engine_core.config``.

Each is declared once, here, and becomes a flag, a ``RINGLINE_…`` variable and an entry of
``docs/reference/configuration.md`` (see ``options``). An unusable value raises ``SettingError`` at construction.
``None`` means "derive the value".
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from services.common.config.addresses import (
    DETOKENIZER_PORT,
    ENGINE_PORT,
    GATEWAY_PORT,
    MAX_SOCKET_PATH_BYTES,
    PROCESSOR_PORT,
    check_addresses,
    default_metrics_port,
    hosts_of,
    join_address,
)
from services.common.config.options import SettingError, check_section, option
from services.common.config.security_settings import (
    HIDDEN,
    ClientAuthSettings,
    PeerSettings,
    ServiceAuthSettings,
    TlsSettings,
    check_dialling,
    check_listening,
)
from services.ring.identity import PEER_NAME
from services.ring.outbox import MAX_UNREAD_BYTES
from services.ring.poison import MAX_CRASH_RESUBMITS
from text_core.parsing.formats import NONE, REASONING_FORMATS, TOOL_FORMATS
from text_core.pictures.limits import MAX_PICTURE_BYTES, MAX_PICTURE_PIXELS, MAX_PICTURE_SECONDS

_METADATA_KEY = re.compile(r"[a-z0-9_.-]+(?<!-bin)")
"""gRPC metadata keys of text values; those of binary values end with -bin."""
_MEDIA_HOST = re.compile(
    r"(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?"
)


class _Section:
    """Checks its own options when constructed."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class ServerSettings(_Section):
    """Address, connections and limits."""

    host: str = option("127.0.0.1", "Interface to listen on; 0.0.0.0 accepts connections from other machines.")
    port: int = option(0, "TCP port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    uds: str | None = option(
        None,
        "Path of a unix socket to listen on, instead of host and port; with --share-port, beside them and without TLS: "
        "the permissions of its file decide who may connect.",
    )
    share_port: bool = option(
        False,
        "Share the port with other processors, or gateways, that share it, too: the system divides new connections "
        "among them.",
    )
    name: str | None = option(
        None,
        "Name of this process in the ring, which should stay the same over restarts: 1 to 128 characters of "
        "A-Z, a-z, 0-9, '.', '_' and '-'. Default: the service, the machine's name and the port.",
    )
    max_message_bytes: int = option(
        4 * 2**20,
        "Largest gRPC message that is accepted, and largest body of a request by HTTP. A larger message ends its "
        "stream.",
        minimum=2 * 2**20,  # twice the largest frame of a link
        maximum=2**31 - 1,
        unit="bytes",
    )
    max_connections: int = option(
        4096,
        "Most open connections; further ones are closed at once. When fewer than a quarter are free, idle "
        "connections are closed, first those of the clients with the most connections.",
        minimum=1,
        maximum=2**31 - 1,
    )
    max_connections_per_client: int = option(
        512,
        "Most connections with calls of one client, that is of one IP address. Calls on further connections "
        "are refused with RESOURCE_EXHAUSTED.",
        minimum=1,
        maximum=2**31 - 1,
    )
    max_streams_per_connection: int = option(
        1024, "Most calls at a time on one connection. A client queues further calls.", minimum=1, maximum=2**31 - 1
    )
    max_calls: int = option(
        8192,
        "Most calls at a time. At the limit, a new call takes the place of the newest call of the client with"
        " the most calls; it is refused if its own client has as many. Refused and replaced calls get "
        "RESOURCE_EXHAUSTED.",
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
        "Memory that a gateway, processor or detokenizer may use, or an engine in addition to its model and KV cache. "
        "Above half of it, connections are closed, first those that hold the most bytes of incomplete "
        "messages.",
        minimum=128 * 2**20,
        maximum=2**50,
        unit="bytes",
    )
    stall_timeout: float = option(
        30.0,
        "A stream is ended when its reader, a peer or client, reads nothing for this long.",
        minimum=0.1,
        maximum=86400,
        unit="seconds",
    )
    drain_grace: float = option(
        30.0,
        "How long running requests may go on after SIGTERM.",
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
    def private_socket(self) -> str | None:
        """The path of the unix socket, if that is all there is to listen on."""
        return None if self.share_port else self.uds

    @property
    def address(self) -> str:
        """The bind address, as gRPC writes it: ``host:port``, ``[v6]:port`` or ``unix:path``."""
        return join_address(self.host, self.port) if self.private_socket is None else f"unix:{self.uds}"


@dataclass(frozen=True, slots=True)
class TelemetrySettings(_Section):
    """Logs, metrics and traces."""

    log_level: str = option("info", "Lowest level to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option(
        "auto",
        "console is readable text, json is one object per line; auto is console on a terminal, else json. For"
        " `ringline serve`, auto is always console.",
        choices=("auto", "console", "json"),
    )
    metrics: bool = option(True, "Serve /metrics for Prometheus.")
    metrics_port: int | None = option(
        None,
        "Port of /metrics; 0 takes a free one. Default: the service's port plus 10000, or minus 10000 where "
        "the sum is above 65535; with --uds, no metrics.",
        minimum=0,
        maximum=65535,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "OpenTelemetry collector (gRPC) that traces are sent to: http://host:port, or https://host:port for "
        "TLS. Needs ringline-server[tracing]. Default: no traces.",
    )
    traces_sample_ratio: float = option(
        1.0,
        "Share of requests that are traced. If a caller sends a traceparent, that decides instead.",
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
    """processor, engine, detokenizer or gateway."""

    server: ServerSettings
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    peers: PeerSettings = field(default_factory=PeerSettings)

    @property
    def name(self) -> str:
        server = self.server
        if server.name is not None:
            return server.name
        place = str(server.port) if server.uds is None else Path(server.uds).stem  # several may share a port
        return re.sub(r"[^A-Za-z0-9._-]", "-", f"{self.service}-{socket.gethostname()}-{place}")[:128]

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the metrics endpoint; None if there is none."""
        telemetry, server = self.telemetry, self.server
        if not telemetry.metrics or (telemetry.metrics_port is None and server.uds is not None):
            return None
        host = server.host if server.private_socket is None else "127.0.0.1"
        if telemetry.metrics_port is not None:
            return host, telemetry.metrics_port
        return host, 0 if server.port == 0 else default_metrics_port(server.port)


@dataclass(frozen=True, slots=True)
class DiscoverySettings(_Section):
    """How peers are found."""

    dns_refresh_interval: float = option(
        5.0,
        "How often the host names of peers are resolved again by DNS.",
        minimum=0.1,
        maximum=3600,
        unit="seconds",
    )


@dataclass(frozen=True, slots=True)
class PlaceSettings(_Section):
    """Where a process runs."""

    zone: str | None = option(
        None,
        "Label of what is close together, such as a machine or a data center: 1 to 128 characters of A-Z, a-z, 0-9, "
        "'.', '_' and '-'. A processor with a zone sends requests to engines of others only while all of its own are "
        "full. Default: all are equally close.",
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.zone is not None and PEER_NAME.fullmatch(self.zone) is None:
            raise SettingError("zone", self.zone, "1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'")


@dataclass(frozen=True, slots=True)
class AnswerSettings(_Section):
    """How the model writes what is no plain text."""

    tool_call_parser: str = option(
        "auto",
        "Format in which the model writes calls of tools. Default: the one in which its chat template shows them; a "
        "model whose template has no place for tools is told of them in its prompt. A request may choose another.",
        choices=("auto", NONE, *TOOL_FORMATS),
    )
    reasoning_parser: str = option(
        "auto",
        "Format in which the model writes its reasoning. Default: the one of which its chat template speaks. A request "
        "may choose another.",
        choices=("auto", NONE, *REASONING_FORMATS),
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class ReaderSettings(_Section):
    """Slow readers of streams."""

    max_unread_bytes: int = option(
        MAX_UNREAD_BYTES,
        "Most bytes of one stream that wait for its reader; with more, the stream is ended. All streams "
        "together may have twice as many; with more, the tenant with the most bytes loses its largest stream.",
        minimum=2 * 2**20,  # twice the largest frame
        unit="bytes",
    )


@dataclass(frozen=True, slots=True)
class RolloutSettings(_Section):
    """Replacing engines by engines of another model."""

    max_generations: int = option(
        8,
        "Most models that are served side by side, those of engines that are being replaced included. "
        "Each takes the memory of its tokenizer. An engine of a further model is not linked until one of "
        "these models has no engines and no requests left.",
        minimum=1,
        maximum=64,
    )


@dataclass(frozen=True, slots=True)
class PictureSettings(_Section):
    """Pictures in prompts."""

    media_processes: int = option(
        1,
        "Processes that decode and resize pictures, beside the processor's own; they start with the first picture.",
        minimum=1,
        maximum=64,
    )
    max_picture_bytes: int = option(
        MAX_PICTURE_BYTES,
        "Largest file of a picture; a larger one is refused with INVALID_ARGUMENT.",
        minimum=1024,
        maximum=2**30,
        unit="bytes",
    )
    max_picture_pixels: int = option(
        MAX_PICTURE_PIXELS,
        "Most pixels of a picture, width times height, before it is resized; a larger one is refused with "
        "INVALID_ARGUMENT. A process that decodes takes up to 20 bytes for each.",
        minimum=1024,
        maximum=2**30,
    )
    max_picture_time: float = option(
        MAX_PICTURE_SECONDS,
        "Most time of a CPU for one picture; one that takes longer is refused with INVALID_ARGUMENT.",
        minimum=0.1,
        maximum=600,
        unit="seconds",
    )


@dataclass(frozen=True, slots=True)
class MediaSettings(_Section):
    """Requests with pictures."""

    max_media_bytes: int = option(
        32 * 2**20,
        "Most bytes of the pictures of one request, in base64 if they come so, beside --max-message-bytes. "
        "A processor and its gateways need the same.",
        minimum=0,
        maximum=2**30,
        unit="bytes",
    )


@dataclass(frozen=True, slots=True)
class ProcessorSettings(ServiceSettings):
    """The processor."""

    service: ClassVar[str] = "processor"

    server: ServerSettings = field(default_factory=lambda: ServerSettings(port=PROCESSOR_PORT))
    engines: tuple[str, ...] = option(
        (f"127.0.0.1:{ENGINE_PORT}",),
        "Addresses of the engines, separated by commas: host:port or unix:path. If a host is a name, each of its "
        "addresses is an engine.",
    )
    detokenizers: tuple[str, ...] = option(
        (f"127.0.0.1:{DETOKENIZER_PORT}",),
        "Addresses of the detokenizers, in the form of --engines. Empty: there are none, as engines that make vectors, "
        "scores or labels need none.",
    )
    place: PlaceSettings = field(default_factory=PlaceSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    auth: ClientAuthSettings = field(default_factory=ClientAuthSettings)
    readers: ReaderSettings = field(default_factory=ReaderSettings)
    pictures: PictureSettings = field(default_factory=PictureSettings)
    media: MediaSettings = field(default_factory=MediaSettings)
    model_aliases: tuple[str, ...] = option(
        (),
        "Further names of the served model, separated by commas: requests may use them, and models are listed under "
        "them, too. Answers have the model's own name.",
    )
    vllm_engine_api: bool = option(
        False,
        "Answer vllm.grpc.engine.VllmEngine, too, as which the Shepherd Model Gateway and others drive vLLM's "
        "engine. Needs ringline-server[smg].",
    )
    enable_adapter_control: bool = option(
        False,
        "Let clients load and unload adapters at engines: with a --tenants-file, those tenants whose adapter_control "
        "is true.",
    )
    max_live_requests: int = option(
        4096, "Most unfinished requests of one session; more are refused with RESOURCE_EXHAUSTED.", minimum=1
    )
    max_queued_requests: int = option(
        4096,
        "Most requests that wait for an engine; more are refused with RESOURCE_EXHAUSTED. One tenant may take"
        " half of what the other tenants leave.",
        minimum=1,
    )
    max_queue_time: float = option(
        60.0,
        "Longest wait for an engine. A request that is expected to wait longer, or longer than its own "
        "timeout, is refused with RESOURCE_EXHAUSTED.",
        minimum=0,
        maximum=86400,
        unit="seconds",
    )
    max_connection_age: float = option(
        1800.0,
        "Age at which clients are asked to open a new connection for new calls, so that new processors get "
        "their share of clients. Calls that are running go on; Sessions get Draining.",
        minimum=0.1,
        maximum=31 * 86400,
        unit="seconds",
    )
    tenant_header: str = option(
        "x-ringline-tenant",
        "gRPC metadata key in which a gateway names the tenant. All calls without it are one tenant. Ignored "
        "if clients authenticate by tokens.",
    )
    patience: float = option(
        60.0,
        "How long a request waits for an engine and a detokenizer if there is none, at its start or after one"
        " was lost.",
        minimum=0,
        maximum=86400,
        unit="seconds",
    )
    max_crash_resubmits: int = option(
        MAX_CRASH_RESUBMITS,
        "A request fails with INTERNAL if this many engines died while they computed it, because it may be the cause.",
        minimum=1,
    )

    def __post_init__(self) -> None:
        check_section(self)
        if not _METADATA_KEY.fullmatch(self.tenant_header) or self.tenant_header.startswith("grpc-"):
            raise SettingError(
                "tenant_header",
                self.tenant_header,
                "a metadata key of a-z, 0-9, '_', '-' and '.' that neither begins with grpc- nor ends with -bin",
            )
        check_addresses("engines", self.engines)
        if self.detokenizers:
            check_addresses("detokenizers", self.detokenizers)
        secrets = {name: getattr(self.auth, name) for name in ("auth_token_file", "auth_jwks_file")}
        secrets["api_key"] = HIDDEN if self.auth.api_key else None
        check_listening(self.tls, self.server.host, self.server.private_socket, secrets, internal=False)
        check_dialling(self.tls, self.peers.service_token_file, hosts_of((*self.engines, *self.detokenizers)))


@dataclass(frozen=True, slots=True)
class DetokenizerSettings(ServiceSettings):
    """The detokenizer."""

    service: ClassVar[str] = "detokenizer"

    server: ServerSettings = field(default_factory=lambda: ServerSettings(port=DETOKENIZER_PORT))
    place: PlaceSettings = field(default_factory=PlaceSettings)
    engines: tuple[str, ...] = option(
        (f"127.0.0.1:{ENGINE_PORT}",),
        "Addresses of the engines, separated by commas: host:port or unix:path. If a host is a name, each of its "
        "addresses is an engine.",
    )
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    readers: ReaderSettings = field(default_factory=ReaderSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    service_auth: ServiceAuthSettings = field(default_factory=ServiceAuthSettings)

    def __post_init__(self) -> None:
        check_section(self)
        check_addresses("engines", self.engines)
        _check_internal(self)
        check_dialling(self.tls, self.peers.service_token_file, hosts_of(self.engines))


@dataclass(frozen=True, slots=True)
class AdapterSettings(_Section):
    """Which adapters an engine knows."""

    lora_modules: str = option(
        "",
        'Adapters that are known from the start, as name=path or {"name": …, "path": …}, separated by commas. Needs '
        "--enable-lora.",
    )
    lora_dir: str | None = option(
        None,
        "Folder whose folders are adapters of their names: they become known, are replaced and removed as they come, "
        "change and go. LoadAdapter loads from below it alone. Needs --enable-lora.",
    )


@dataclass(frozen=True, slots=True)
class EngineServiceSettings(ServiceSettings):
    """The engine as a service; what it computes and how is ``engine_core.config.EngineConfig``."""

    service: ClassVar[str] = "engine"

    server: ServerSettings = field(default_factory=lambda: ServerSettings(port=ENGINE_PORT))
    place: PlaceSettings = field(default_factory=PlaceSettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    adapters: AdapterSettings = field(default_factory=AdapterSettings)
    orphan_grace: float = option(
        2.0,
        "Requests are cancelled when the processor that sent them has been gone for this long.",
        minimum=0,
        maximum=3600,
        unit="seconds",
    )
    load_log_interval: float = option(
        10.0,
        "Time between log lines about the load, while the engine computes; 0: none.",
        minimum=0,
        maximum=3600,
        unit="seconds",
    )
    service_auth: ServiceAuthSettings = field(default_factory=ServiceAuthSettings)

    def __post_init__(self) -> None:
        check_section(self)
        _check_internal(self)
        if self.tls.tls_ca_file is not None and self.tls.tls_cert_file is None:
            raise SettingError(
                "tls_ca_file",
                self.tls.tls_ca_file,
                "--tls-cert-file to be given, too: an engine only accepts connections",
            )


@dataclass(frozen=True, slots=True)
class GatewaySettings(ServiceSettings):
    """The gateway."""

    service: ClassVar[str] = "gateway"

    server: ServerSettings = field(  # HTTP/1.1 has a connection for each request, where gRPC has one for all
        default_factory=lambda: ServerSettings(port=GATEWAY_PORT, max_connections=8192, max_connections_per_client=2048)
    )
    media: MediaSettings = field(default_factory=MediaSettings)
    processors: tuple[str, ...] = option(
        (f"127.0.0.1:{PROCESSOR_PORT}",),
        "Addresses of the processors, separated by commas: host:port or unix:path. If a host is a name, each of its "
        "addresses is a processor.",
    )
    processor_cert_file: str | None = option(
        None,
        "PEM file of the processors' own certificate, the only one that is then trusted, by whatever name they are "
        "dialled. Default: the certificates of the authorities in --tls-ca-file.",
    )
    cors_origins: tuple[str, ...] = option(
        (),
        "Origins whose pages may call the gateway from a browser, such as https://app.example.com; * for every "
        "origin. Default: only the gateway's own chat page, opened by TLS, an IP address or localhost.",
    )
    allowed_media_hosts: tuple[str, ...] = option(
        (),
        "Hosts from which pictures are fetched that a request names by URL, separated by commas: a name or address, "
        "*.example.com for the names below it, or * for every host; with :port for a port that is not the scheme's. "
        "Nothing is fetched within private networks, but from an address that is itself in the list. Default: none; "
        "pictures come as data: URLs.",
    )
    tenant_header: str = option(
        "x-ringline-tenant",
        "HTTP header in which a proxy names the tenant; it goes on to processors, which ignore it if clients "
        "authenticate by tokens.",
    )

    def __post_init__(self) -> None:
        check_section(self)
        check_addresses("processors", self.processors)
        check_listening(self.tls, self.server.host, self.server.private_socket, {}, internal=False)
        for entry in self.allowed_media_hosts:
            if not _MEDIA_HOST.fullmatch(entry):
                expected = "names such as images.example.com, *.example.com or 192.0.2.1:8080, or *; without https://"
                raise SettingError("allowed_media_hosts", entry, expected)
        if (token_file := self.peers.service_token_file) is not None:
            problem = "none: processors ask for the tokens of the gateway's callers, and for its certificate"
            raise SettingError("service_token_file", token_file, problem)


def _check_internal(settings: ServiceSettings) -> None:
    """Checks for the services that only other services call."""
    if settings.server.share_port:
        raise SettingError("share_port", "true", f"no value: peers link to each {settings.service} at its own address")
    secrets = {"service_token_file": settings.peers.service_token_file}
    check_listening(settings.tls, settings.server.host, settings.server.uds, secrets, internal=True)
