"""The detokenizer's engines: whose tokenizer holds."""

from __future__ import annotations

import pytest
from ringline.engine.v1 import engine_pb2

from services.detokenizer.engines import Engines
from services.ring.identity import PeerId
from services.runtime.redial import LinkRefused
from services.text.tokenizer import Tokenizer
from tests.services.processor.vocabularies import tokenizer


class Stub:
    """An engine, by the fingerprint of its tokenizer."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint

    async def GetModel(self, request: engine_pb2.GetModelRequest, **call: float) -> engine_pb2.GetModelResponse:
        return model_of(self.fingerprint)


def model_of(fingerprint: str) -> engine_pb2.GetModelResponse:
    """What it says of itself."""
    return engine_pb2.GetModelResponse(name=fingerprint, incarnation=1, tokenizer_digest=fingerprint)


class Link:
    """The dialling end, as far as its owner looks at it."""

    def __init__(self, address: str) -> None:
        self.address = address


class Another(Tokenizer):
    """A tokenizer that names itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def fingerprint(self) -> str:
        return self._name


async def test_of_two_engines_that_come_at_once_with_different_tokenizers_one_is_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = Engines()

    async def fetch(stub: Stub, fingerprint: str) -> Tokenizer:
        return Another(fingerprint)

    monkeypatch.setattr(engines, "_fetch", fetch)
    one = await engines.prepare(Stub("one"))
    two = await engines.prepare(Stub("two"))  # nobody is attached yet
    with pytest.raises(LinkRefused, match="fingerprint is one"):
        engines.engine_up(Link("first"), PeerId("one", 1), one)  # type: ignore[arg-type]
    engines.engine_up(Link("second"), PeerId("two", 1), two)  # type: ignore[arg-type]
    with pytest.raises(LinkRefused, match="fingerprint is one, expected two"):
        await engines.prepare(Stub("one"))


async def test_an_engine_that_is_attached_while_another_sends_its_tokenizer_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = Engines()
    ours = tokenizer()

    async def fetch(stub: Stub, fingerprint: str) -> Tokenizer:
        if fingerprint == ours.fingerprint():
            return ours
        engines.engine_up(Link("first"), PeerId("one", 1), model_of(ours.fingerprint()))  # type: ignore[arg-type]
        return Another(fingerprint)

    monkeypatch.setattr(engines, "_fetch", fetch)
    await engines.prepare(Stub(ours.fingerprint()))
    with pytest.raises(LinkRefused, match="expected"):
        await engines.prepare(Stub("two"))
    assert engines._tokenizer is ours
