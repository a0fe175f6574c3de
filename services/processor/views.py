"""A peer as people are shown it: what it last reported, and what this processor has there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2


@dataclass(frozen=True, slots=True)
class PeerView:
    """An engine or a detokenizer."""

    service: str
    name: str
    state: str
    """serving, draining or silent."""
    tokens: int
    """Computed or decoded since its start."""
    own: int
    """Requests of this processor that it has."""
    linked: tuple[str, ...]
    """Of an engine: the detokenizers that it is joined with."""
    load: Mapping[str, float]
    """The rest of what it reported."""


def engine_view(name: str, state: str, load: engine_pb2.Load, own: int, linked: tuple[str, ...]) -> PeerView:
    """Of an engine."""
    shown = {
        "running": load.running_choices,
        "waiting": load.waiting_requests,
        "kv_usage": round(load.kv_usage, 4),
        "kv_blocks": load.blocks_total,
        "preemptions": load.preemptions,
        "prefix_hits": load.prefix_hits / load.prefix_queries if load.prefix_queries else 0.0,
    }
    return PeerView("engine", name, state, load.generated_tokens, own, linked, shown)


def detokenizer_view(name: str, state: str, load: detokenizer_pb2.Load, own: int) -> PeerView:
    """Of a detokenizer."""
    return PeerView("detokenizer", name, state, load.decoded_tokens, own, (), {"requests": load.live_requests})
