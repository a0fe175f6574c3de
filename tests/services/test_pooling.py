"""Vectors of real processes: the same bits alone, in a batch, and when the engine that computes them is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ringline import Embeddings

from tests.chaos import vectors
from tests.chaos.fleet import Fleet
from tests.chaos.load import connect

pytestmark = pytest.mark.long

TEXTS = [f"Once upon a time there {'was ' * (number % 7)}a dog with {number} bones." for number in range(24)]
REPEATED = 12
"""Times that a request has all of the texts: it takes many steps."""
REQUESTS = 4


def bits(found: Embeddings) -> list[bytes]:
    return [vector.tobytes() for vector in found]


@pytest.mark.timeout(300)
async def test_vectors_have_the_same_bits_alone_in_a_batch_and_after_a_killed_engine(tmp_path: Path) -> None:
    others = vectors.engines(tmp_path / "vectors", 0)
    # There is no detokenizer, and no engine that generates.
    async with Fleet(tmp_path, 1, 0, 0, others=others) as fleet, connect(fleet.fronts) as client:
        batch = bits(await client.embed(TEXTS))
        assert len(set(batch)) == len(TEXTS)
        for index in (0, 5, 23):
            assert bits(await client.embed(TEXTS[index])) == [batch[index]]
        asked = [asyncio.create_task(client.embed(TEXTS * REPEATED)) for _ in range(REQUESTS)]
        engine = fleet.processes["engine-0"]
        while not (await engine.held()).ledgers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        engine.kill()
        for each in asked:
            assert bits(await each) == batch * REPEATED
        other = fleet.processes["engine-1"]
        while (await other.held()).ledgers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
