"""Ranks as threads of one process, each with collectives of its own over memory that they share."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from engine_core.distributed.shm import ShmCollectives
from engine_core.kernels.library import load_kernels

Result = TypeVar("Result")
JOIN_SECONDS = 20.0


def on_ranks(size: int, work: Callable[[ShmCollectives], Result]) -> list[Result]:
    """What ``work`` returns on each of ``size`` ranks. The first error ends all of them, and is raised."""
    key, kernels, joined = secrets.token_hex(8), load_kernels(), list[ShmCollectives]()

    def run(rank: int) -> Result:
        collectives = ShmCollectives.join(key, rank, size, JOIN_SECONDS, kernels)
        joined.append(collectives)
        return work(collectives)

    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(run, rank) for rank in range(size)]
        failed = [each for each in wait(ranks, return_when=FIRST_EXCEPTION).done if each.exception() is not None]
        for collectives in joined if failed else ():
            collectives.abort()
    if failed:
        raise failed[0].exception() or AssertionError
    for collectives in joined:
        collectives.close()
    return [each.result() for each in ranks]
