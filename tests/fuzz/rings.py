"""The rings that are fuzzed, one of each kind of model: what serves them, and what their well-behaved client asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringline import AsyncClient

from tests.fuzz.http_requests import posted, streamed
from tests.pooling_models import encoder, reranker
from tests.ring import MODEL, Ring, running_ring

PROMPT = "Once upon a time"
DOCUMENTS = ("A dog ran home.", "The king of the hill slept " + "very " * 20 + "well.")
_ASKED: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}


def _bundled(_directory: Path) -> Path:
    return MODEL


async def _generated(client: AsyncClient) -> object:
    return (await client.generate(PROMPT, **_ASKED)).text


async def _embedded(client: AsyncClient) -> object:
    return [vector.tobytes() for vector in await client.embed(DOCUMENTS)]


async def _scored(client: AsyncClient) -> object:
    return list(await client.score(PROMPT, DOCUMENTS))


async def _embedded_by_http(host: str, port: int) -> str:
    return await posted(host, port, "/embed", {"inputs": DOCUMENTS})


async def _scored_by_http(host: str, port: int) -> str:
    return await posted(host, port, "/rerank", {"query": PROMPT, "texts": DOCUMENTS})


async def _streamed(host: str, port: int) -> str:
    return await streamed(host, port, PROMPT)


@dataclass(frozen=True)
class RingKind:
    """What serves a ring, and a request with one right answer."""

    make: Callable[[Path], Path]
    """The checkpoint, in a directory if it is made."""
    services: Sequence[str]
    """Those that are fuzzed."""
    ask: Callable[[AsyncClient], Awaitable[object]]
    ask_by_http: Callable[[str, int], Awaitable[object]]
    """At a host and a port."""


_POOLING = ("processor", "engine", "gateway")
"""Of models that pool: their detokenizer has nothing to do."""
KINDS: Mapping[str, RingKind] = {
    "tokens": RingKind(_bundled, ("processor", "engine", "detokenizer", "gateway"), _generated, _streamed),
    "vectors": RingKind(encoder, _POOLING, _embedded, _embedded_by_http),
    "scores": RingKind(reranker, _POOLING, _scored, _scored_by_http),
}
"""By what their engine makes, which is also the model's name; that of tokens is called tiny."""


@contextmanager
def running(kind: str, directory: Path) -> Iterator[Ring]:
    """A ring of that kind, with a gateway."""
    checkpoint = KINDS[kind].make(directory / kind)
    with running_ring(directory, "--vllm-engine-api", model=checkpoint, http=True) as ring:
        yield ring
