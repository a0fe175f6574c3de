"""How the library connects: the gRPC options of its channels, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # Responses come in frames of about 1 MiB, but the ids of a prompt in one, which may be above the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # Channels to one address would share one connection, and with it the HTTP/2 window that a slow reader fills.
    ("grpc.use_local_subchannel_pool", 1),
    # Notice a peer that is gone without a word (a cut cable, a frozen machine) while calls are under way.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A Session may be idle for long; do not stop asking after two pings without data.
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect quickly to a server that restarts; the defaults are 1 s and 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def metadata_pairs(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """What goes with every call; gRPC wants keys in lower case."""
    return tuple((key.lower(), value) for key, value in (metadata or {}).items())
