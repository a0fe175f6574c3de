"""How the library connects: the gRPC options of its channels, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # Responses come in frames of about 1 MiB, but the ids of a prompt in one, which may be above the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # Channels to one address would share one connection, and with it the HTTP/2 window that a slow reader fills.
    ("grpc.use_local_subchannel_pool", 1),
    # Notice within 6 s a peer that is gone without a word (a cut cable, a stopped process) while calls are under way.
    # A server answers pings whatever its model computes, so a long prefill is no silence.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # Other pings (gRPC measures the bandwidth with them) have a limit of their own, a minute by default, and while one
    # of them is under way the keepalive's is not sent.
    ("grpc.http2.ping_timeout_ms", 3_000),
    # A Session may be idle for long; do not stop asking after two pings without data.
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect quickly to a server that restarts; the defaults are 1 s and 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The time one attempt to connect may take, 20 s by default: a stopped process takes connections and says nothing.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # A name may have several addresses: connect to all, so that another is there when one is lost, and spread calls.
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
    # Look the name up again soon when a server is lost: its successor may have another address. The default is 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    # What may be sent again is decided where it is known what was delivered, never by the transport.
    ("grpc.enable_retries", 0),
)


def metadata_pairs(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """What goes with every call; gRPC wants keys in lower case."""
    return tuple((key.lower(), value) for key, value in (metadata or {}).items())
