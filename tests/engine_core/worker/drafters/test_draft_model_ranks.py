"""A drafting model lives on the rank that samples: with any number of ranks its drafts are the same, and right where it
is the target itself.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.engine_core.distributed.matrix import Ranks
from tests.engine_core.engines import speculating, started
from tests.engine_core.executor.ranks.forked_ranks import LOCAL_RANK, ForkedRank
from tests.engine_core.sampled_workload import WORKLOAD, Streams, streams

NAMES = [*WORKLOAD.prompts][:16]
SIZES: dict[str, object] = {"num_threads": 1, "block_size": 4, "max_model_len": 128}
WITH_ROOM, IN_NEED = 16 << 20, 350_000


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> Streams:
    with started(checkpoint) as engine:
        return streams(engine, NAMES)


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [Ranks(1, 2), Ranks(2, 1), Ranks(2, 2)], ids=str)
@pytest.mark.parametrize("cache_bytes", [WITH_ROOM, IN_NEED])
def test_the_rank_that_samples_drafts_for_all(
    checkpoint: Path, expected: Streams, ranks: Ranks, cache_bytes: int
) -> None:
    config: dict[str, object] = {"method": "draft_model", "model": str(checkpoint)}
    options = SIZES | {"kv_cache_memory_bytes": cache_bytes} | ranks.options()
    with mock.patch(LOCAL_RANK, ForkedRank), speculating(checkpoint, config, **options) as found:
        assert streams(found.engine, NAMES) == expected
        assert (found.engine.core.stats().preemptions > 0) == (cache_bytes == IN_NEED)
    assert found.executor.accepted == found.executor.planned > 100
