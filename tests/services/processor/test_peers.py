"""What the processor believes of its peers: who may get work, and whose vocabulary holds."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from ringline.engine.v1 import engine_pb2

from services.processor.vocabulary import Vocabulary
from services.ring.liveness import BEAT_LIMIT
from services.runtime.redial import LinkRefused
from tests.services.processor.asking import ask, processors_stream
from tests.services.ring.world import MODEL_MESSAGE, World


class Stub:
    """An engine that serves another model."""

    async def GetModel(self, request: engine_pb2.GetModelRequest, **call: float) -> engine_pb2.GetModelResponse:
        return engine_pb2.GetModelResponse(model="another", name="engine-9", incarnation=1)


def hear(world: World, **frame: object) -> None:
    """The engine says something."""
    stream = processors_stream(world)
    response = engine_pb2.AttachResponse(**frame)  # type: ignore[arg-type]
    world.peers.engine_frame(stream, stream.engine.me, response)  # type: ignore[arg-type]


@pytest.mark.parametrize("draining", [False, True])
def test_an_engine_that_is_trusted_again_gets_work_unless_it_drains(world: World, draining: bool) -> None:
    assert world.peers.ready
    later = time.monotonic() + 2 * BEAT_LIMIT
    world.peers.watch(later)
    assert not world.peers.ready
    hear(world, load=engine_pb2.Load())
    (detokenizer,) = world.peers._detokenizers.values()
    detokenizer.liveness.beat(time.monotonic())
    if draining:
        hear(world, draining={})
    world.peers.watch(time.monotonic())
    assert world.peers.ready == (not draining)


async def test_another_vocabulary_waits_until_nobody_holds_on_to_the_present_one(world: World) -> None:
    world.ask(ask())
    world.detach(processors_stream(world))
    with pytest.raises(LinkRefused, match="model is 'another', expected 'm'"):
        await world.peers.prepare(Stub())


async def test_of_two_engines_that_come_at_once_with_different_models_one_is_attached(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.detach(processors_stream(world))

    class First(Stub):
        async def GetModel(self, request: engine_pb2.GetModelRequest, **call: float) -> engine_pb2.GetModelResponse:
            return MODEL_MESSAGE

    async def fetch(stub: Stub, model: engine_pb2.GetModelResponse) -> Vocabulary:
        return replace(world.vocabulary, model=model)

    monkeypatch.setattr(world.peers._vocabulary, "_fetch", fetch)
    await world.peers.prepare(First())
    await world.peers.prepare(Stub())  # before the first is attached: nothing holds on to its model
    with pytest.raises(LinkRefused, match="model is 'm', expected 'another'"):
        world.attach(world.engines["engine-0"], world.me, world.peers)
    assert not world.peers.has_engine(world.engines["engine-0"].me)


async def test_an_engine_that_is_attached_while_another_sends_its_tokenizer_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.detach(processors_stream(world))

    async def fetch(stub: Stub, model: engine_pb2.GetModelResponse) -> Vocabulary:
        world.attach(world.engines["engine-0"], world.me, world.peers)
        return replace(world.vocabulary, model=model)

    monkeypatch.setattr(world.peers._vocabulary, "_fetch", fetch)
    with pytest.raises(LinkRefused, match="model is 'another', expected 'm'"):
        await world.peers.prepare(Stub())
    assert world.peers._vocabulary.current is world.vocabulary
