"""A tokenizer is fetched once from however many engines have it, and an engine that hangs holds nobody up for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ringline.engine.v1 import engine_pb2

from services.common.links import tokenizer_fetch
from services.common.links.redial import LinkRefused
from services.common.links.tokenizer_fetch import TokenizerFetcher
from text_core.tokenizer_files import fingerprint

FILES = {"tokenizer.json": b"{}"}
DIGEST = fingerprint(FILES)


class Stub:
    """An engine that sends its tokenizer when it is told to."""

    def __init__(self, name: str = "tokenizer.json") -> None:
        self.name = name
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def GetTokenizer(
        self, request: engine_pb2.GetTokenizerRequest, **call: float
    ) -> AsyncIterator[engine_pb2.GetTokenizerResponse]:
        self.asked.set()
        await self.go.wait()
        yield engine_pb2.GetTokenizerResponse(name=self.name, data=FILES["tokenizer.json"])


class Holder:
    """What is kept: how many files there were, by digest."""

    def __init__(self) -> None:
        self.fetches = TokenizerFetcher(len)
        self.held: dict[str, int] = {}

    def get(self, stub: Stub, digest: str = DIGEST) -> asyncio.Task[None]:
        keep = lambda made: self.held.setdefault(digest, made)  # noqa: E731
        return asyncio.create_task(self.fetches.get(digest, stub, lambda: self.held.get(digest), keep))


async def test_engines_that_come_at_once_are_asked_once() -> None:
    holder, stubs = Holder(), [Stub() for _ in range(3)]
    tasks = [holder.get(stub) for stub in stubs]
    await stubs[0].asked.wait()
    stubs[0].go.set()
    await asyncio.gather(*tasks)
    assert holder.held == {DIGEST: 1}
    assert [stub.asked.is_set() for stub in stubs] == [True, False, False]
    assert not holder.fetches._under_way


async def test_one_that_fails_leaves_it_to_the_next() -> None:
    holder, damaged, sound = Holder(), Stub("weights.bin"), Stub()
    first, second = holder.get(damaged), holder.get(sound)
    damaged.go.set()
    sound.go.set()
    with pytest.raises(LinkRefused, match="is not a tokenizer file"):
        await first
    await second
    assert holder.held == {DIGEST: 1}


async def test_what_was_sent_is_what_was_named() -> None:
    holder, stub = Holder(), Stub()
    stub.go.set()
    with pytest.raises(LinkRefused, match=r"the tokenizer files it sent have the digest .*: expected another"):
        await holder.get(stub, "another")


async def test_one_that_hangs_holds_up_neither_its_likes_for_long_nor_others_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_fetch, "SLOW", 0.02)
    holder, hung, sound = Holder(), Stub(), Stub()
    stuck = holder.get(hung)
    await hung.asked.wait()
    sound.go.set()
    await holder.get(sound)
    assert holder.held == {DIGEST: 1}
    hung.go.set()
    await stuck
    assert not holder.fetches._under_way
