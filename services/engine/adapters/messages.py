"""Conversions between protobuf and an engine's adapters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import adapter_pb2

from services.engine.adapters.registry import AdapterNews, AdapterRegistry, Generation
from services.ring.identity import ADAPTERS, check_requires


class FindAdapter(Protocol):
    """Finds a request's adapter."""

    def __call__(self, name: str, digest: str, *, is_new: bool) -> Generation:
        """``is_new``: the request has not begun elsewhere. Raises ``Refused``."""


def no_adapter(name: str, digest: str, *, is_new: bool) -> Generation:
    """Raises ``Refused``: this engine serves none."""
    check_requires([ADAPTERS], ())
    raise AssertionError


def adapter_of(submit: engine_pb2.Submit, capabilities: Collection[str], find: FindAdapter) -> Generation | None:
    """The adapter of a Submit, which is never ignored, even if ``requires`` does not name it. Raises ``Refused``."""
    if not submit.HasField("adapter"):
        return None
    check_requires([ADAPTERS], capabilities)
    return find(submit.adapter.name, submit.adapter.digest, is_new=submit.epoch <= 1 and not submit.resume)


def adapter_message(generation: Generation) -> adapter_pb2.Adapter:
    """Its name and digest."""
    return adapter_pb2.Adapter(name=generation.name, digest=generation.file.digest)


def state_message(registry: AdapterRegistry, generation: Generation) -> engine_pb2.AdapterState:
    """What peers are told of it."""
    return engine_pb2.AdapterState(
        adapter=adapter_message(generation),
        current=generation.is_current,
        loaded=registry.is_loaded(generation),
    )


def changes_message(registry: AdapterRegistry, news: AdapterNews) -> engine_pb2.AdapterChanges:
    """What a peer is told next."""
    known, gone, complete = news.take()
    return engine_pb2.AdapterChanges(
        states=[state_message(registry, each) for each in known],
        gone=[adapter_pb2.Adapter(name=name, digest=digest) for name, digest in gone],
        complete=complete,
    )


def listed_message(registry: AdapterRegistry, generation: Generation) -> engine_pb2.ListedAdapter:
    """An entry of ListAdapters."""
    return engine_pb2.ListedAdapter(
        state=state_message(registry, generation),
        path=generation.path,
        rank=generation.file.rank,
        memory_bytes=generation.file.nbytes,
        base_model=generation.file.base_model,
        live_requests=len(generation.users),
    )
