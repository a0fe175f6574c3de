"""The detokenizer's engines: each is decoded with its own tokenizer, and so many tokenizers are held."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from ringline.engine.v1 import engine_pb2

from services.common.links.redial import LinkRefused
from services.detokenizer.engines import Engines
from services.ring.identity import PeerId
from tests.services.processor.model_specs import files
from text_core.tokenizer_files import fingerprint


class Stub:
    """An engine, by the number of its tokenizer: all decode alike, and no two are the same."""

    def __init__(self, number: int) -> None:
        self.peer = PeerId(f"engine-{number}", number)
        self.files = files() | {"generation_config.json": b"{}" + b" " * number}
        self.fetched = 0

    async def GetModel(self, request: engine_pb2.GetModelRequest, **call: float) -> engine_pb2.GetModelResponse:
        digest = fingerprint(self.files)
        return engine_pb2.GetModelResponse(
            name=self.peer.name, incarnation=self.peer.incarnation, model=self.peer.name, tokenizer_digest=digest
        )

    async def GetTokenizer(
        self, request: engine_pb2.GetTokenizerRequest, **call: float
    ) -> AsyncIterator[engine_pb2.GetTokenizerResponse]:
        self.fetched += 1
        for name, data in self.files.items():
            yield engine_pb2.GetTokenizerResponse(name=name, data=data, total_bytes=len(data))


class Link:
    """The dialling end, as far as its owner looks at it."""

    address = "unix:engine"


async def attach(engines: Engines, stub: Stub) -> None:
    model = await engines.prepare(stub)
    engines.engine_up(Link(), stub.peer, model)  # type: ignore[arg-type]


async def test_engines_of_different_tokenizers_are_attached_side_by_side() -> None:
    engines, stubs = Engines(3), [Stub(number) for number in (1, 3, 2)]
    for stub in stubs:
        await attach(engines, stub)
    for stub in stubs:
        assert engines._decoders[stub.peer]._tokenizer.fingerprint() == fingerprint(stub.files)
    assert engines.model_name == "engine-3", "that of the engine which was started last"


async def test_engines_of_one_tokenizer_share_it() -> None:
    engines, first, second = Engines(1), Stub(1), Stub(1)
    second.peer = PeerId("another", 2)
    await attach(engines, first)
    await attach(engines, second)
    assert (first.fetched, second.fetched) == (1, 0)


async def test_an_engine_of_one_tokenizer_too_many_waits_until_another_is_gone() -> None:
    engines, first, second, third = Engines(2), Stub(1), Stub(2), Stub(3)
    await attach(engines, first)
    await attach(engines, second)
    with pytest.raises(LinkRefused, match=r"limit of 2 tokenizers .--max-generations. reached"):
        await engines.prepare(third)
    assert engines.num_generations == 2
    engines.engine_down(Link(), first.peer)  # type: ignore[arg-type]
    await attach(engines, third)


async def test_an_engine_whose_tokenizer_was_forgotten_too_early_is_asked_again() -> None:
    engines, first, second = Engines(1), Stub(1), Stub(2)
    model = await engines.prepare(first)
    await engines.prepare(second)
    with pytest.raises(LinkRefused, match="dropped for later ones"):
        engines.engine_up(Link(), first.peer, model)  # type: ignore[arg-type]
