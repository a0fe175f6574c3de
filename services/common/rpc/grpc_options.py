"""Every gRPC option of both ends of a connection, with its reason; the two ends' keepalive must fit each other."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.channel import RING_OPTIONS

from services.common.config.settings import ServerSettings

GrpcOptions = Sequence[tuple[str, int | str]]

_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000

_BOTH: GrpcOptions = (
    # Without pings a half-open connection (a pulled cable) would look idle forever. With them, a dead one is found
    # within 15 s. (A hung process is found sooner, because its load reports stop.)
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # The bandwidth probe, below, is a ping too, with a separate timeout: a minute by default. While it is in flight, no
    # keepalive ping is sent.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # A link without a request on it must be known to be alive before a request is routed over it.
    ("grpc.keepalive_permit_without_calls", 1),
    # 0 is no limit. By default pings stop after two without data between them, and a quiet link would go unwatched.
    ("grpc.http2.max_pings_without_data", 0),
    # Metadata carries identity and deadlines, nothing large.
    ("grpc.max_metadata_size", 16 * 1024),
)


def server_options(settings: ServerSettings, max_connections: int, max_connection_age: float | None) -> GrpcOptions:
    """The options of every server. ``max_connection_age``: seconds; set only by the processor, which clients call."""
    # Sends GOAWAY and does not end calls in flight: gRPC's grace for them has no limit by default.
    age = [] if max_connection_age is None else [("grpc.max_connection_age_ms", round(max_connection_age * 1000))]
    return (
        *_BOTH,
        *age,
        # A client's frame must not exhaust the process's memory. A larger one ends its stream with RESOURCE_EXHAUSTED.
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        # Only "identity", no compression: the memory guard compares message sizes with the bytes that arrived.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Senders bound messages when they make them (link frames of 1 MiB), and receivers check them.
        ("grpc.max_send_message_length", -1),
        # Two servers on one port share its connections at random: without --share-port, the second must fail instead.
        ("grpc.so_reuseport", int(settings.share_port)),
        # Calls in flight on one connection: a client with more requests opens a Session. Without a limit one
        # connection could hold any number of handlers.
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        # Beyond this, gRPC closes connections as it accepts them. (``connections.py`` keeps places free.)
        ("grpc.max_allowed_incoming_connections", max_connections),
        # A connection without calls costs a descriptor, and one of the places above; its client reconnects, unnoticed.
        ("grpc.max_connection_idle_ms", round(settings.connection_idle_timeout * 1000)),
        # Flow-control window of each stream. By default gRPC lets it grow with the bandwidth that it measures, to
        # 16 MiB and more, all of it held here when clients send faster than we read.
        ("grpc.http2.bdp_probe", 0),
        # A stream whose handler reads gets window for the whole of its message, so this costs no speed.
        ("grpc.http2.lookahead_bytes", 64 * 1024),
        # A client that connects and then sends nothing, or half a TLS handshake, is closed after this; default: 120 s.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # Clients may ping every second, to notice soon that this process is stopped (ours ping every 3 s); by default
        # the server takes a ping more often than every five minutes for abuse and ends the connection (too_many_pings).
        # Half a second: pings sent a second apart do not always come a second apart.
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
    )


def channel_options(max_message_bytes: int) -> GrpcOptions:
    """Options of every channel to a server of the ring; ``max_message_bytes`` limits received messages."""
    return (
        *_BOTH,
        *RING_OPTIONS,
        # The largest frame is 1 MiB and tokenizer files come in chunks; anything larger is not a message of the ring.
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Windows follow the measured bandwidth: there are few links, and what comes over them is read at once.
        # (This is the default; it is stated because memory depends on it.)
        ("grpc.http2.bdp_probe", 1),
        # gRPC's own reconnects: the first soon, because peers of one machine restart within a second; never rarer
        # than every 5 s, because requests wait. (gRPC adds its own jitter of 20 %.)
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),  # also the time one attempt to connect may take
        ("grpc.max_reconnect_backoff_ms", 5_000),
    )
