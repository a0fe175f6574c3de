"""The gRPC options of the library's channels, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

RING_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # A proxy in the environment (http_proxy, https_proxy, grpc_proxy) is for the web. By default gRPC sends everything
    # to it, loopback included, unless no_proxy names the host exactly as it is dialled.
    ("grpc.enable_http_proxy", 0),
    # Otherwise channels to one address share a connection, and its HTTP/2 window, which one slow reader can fill.
    ("grpc.use_local_subchannel_pool", 1),
    # Only code that knows what was delivered decides on retries (``retry``), never the transport.
    ("grpc.enable_retries", 0),
)
"""Options of every channel, a client's or a service's."""

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *RING_OPTIONS,
    # Frames are about 1 MiB, but a prompt's ids come in one frame, which may exceed the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # Notice within 6 s a peer that vanished without closing (a cut cable, a stopped process) while calls are open.
    # A server answers pings while its model computes, so a long prefill does not look like a lost peer.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # Other pings (gRPC's bandwidth probes) have a separate timeout, a minute by default, and while one is unanswered
    # no keepalive ping is sent.
    ("grpc.http2.ping_timeout_ms", 3_000),
    # A Session may be idle for long; do not stop keepalive after two pings without data.
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect quickly to a server that restarts; the defaults are 1 s and 120 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Timeout of one connection attempt, 20 s by default: a stopped process accepts connections and never answers.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # A name may have several addresses: connect to all of them, to spread calls and to have another when one is lost.
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
    # Resolve the name again soon after a server is lost: its successor may have another address. The default is 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
)
"""Options of a client's channels."""


def metadata_pairs(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Metadata in gRPC's form, with keys in lower case."""
    return tuple((key.lower(), value) for key, value in (metadata or {}).items())
