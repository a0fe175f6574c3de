"""Streams that begin on an engine of two ranks go on in one of a single process when a rank is killed, and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.load import ask, connect
from tests.chaos.outcome import Outcome, find_defects
from tests.chaos.ranks import OPTIONS, kill_one, ranks_of
from tests.chaos.workload import RequestSpec
from tests.processes import alive

pytestmark = pytest.mark.distributed

RANKED, ALONE = "engine-0", "engine-1"
TOKENS = 1900
SPECS = [
    RequestSpec("greedy", "Once upon a time", options={"temperature": 0.0, "logprobs": 3}),
    RequestSpec("seeded", "There was a small dog", options={"temperature": 0.9, "seed": 4, "logprobs": 1}),
    RequestSpec("choices", "The red ball", options={"temperature": 0.9, "seed": 5, "n": 3}),
    RequestSpec("penalties", "Two sisters", options={"seed": 6, "repetition_penalty": 1.1, "presence_penalty": 0.3}),
]
LONG = {"ignore_eos": True, "max_tokens": TOKENS}


def holders(outcome: Outcome) -> list[str]:
    """The engines that a stream has lost, in order."""
    return [name for pause in outcome.pauses for name in (RANKED, ALONE) if f" {name} " in f"{pause.reason} "]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", ["--tensor-parallel-size", "--pipeline-parallel-size"])
async def test_streams_move_from_ranks_to_a_process_and_back(flags: str, tmp_path: Path) -> None:
    options = (flags, *OPTIONS[RANKED][1:])
    specs = [RequestSpec(each.name, each.prompt, options=each.options | LONG) for each in SPECS]
    async with Fleet(tmp_path, 1, 1, 2, ranks={RANKED: options}) as fleet, connect(fleet.fronts) as client:
        ranked, alone = fleet.processes[RANKED], fleet.processes[ALONE]
        right = await asyncio.gather(*(ask(client, spec) for spec in specs))
        assert not any(each.error for each in right)
        alone.kill()
        # Enough of each for the streams to last until the other engine serves again.
        streams = [asyncio.create_task(ask(client, spec)) for spec in specs * 6]
        while (await ranked.held()).running < len(streams):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        alone.start()
        await alone.wait_serving()
        ranks = ranks_of(ranked)
        kill_one(ranked)
        assert await asyncio.to_thread(ranked.wait) == 1
        assert not any(map(alive, ranks))
        ranked.start()
        await ranked.wait_serving()
        alone.kill()
        outcomes = [await each for each in streams]
    for outcome, expected in zip(outcomes, [*right] * 6, strict=True):
        assert find_defects(outcome, expected, cancelled=False) == {}
        assert outcome.not_identical == 0
    assert [RANKED, ALONE] in [*map(holders, outcomes)]
