"""A rank as a process: ``rank_process.py KEY RANK SIZE``. It says on stdout how far it is, one JSON value a line.

It runs rounds of gathers. Then rank 0 waits for the others, in vain, until a line on stdin tells it to abort.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

import torch

from engine_core.distributed.shm import ShmCollectives
from engine_core.errors import RankFailedError
from engine_core.kernels.library import load_kernels
from tests.engine_core.distributed.rounds import run_rounds

ROUNDS = 1000


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def opened() -> list[str]:
    """What the open descriptors are."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one by which they are listed
            found.append(str(descriptor.readlink()))
    return sorted(each for each in found if "ringline" in each or "/dev/shm" in each)


def main(key: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    collectives = ShmCollectives.join(key, rank, size, 60.0, load_kernels())
    try:
        run_rounds(collectives, ROUNDS, seed=7, most_delay=0.0005)
    except BaseException:
        collectives.abort()
        raise
    say(rounds=ROUNDS)
    if rank != 0:
        sys.stdin.readline()
    aborted_at = 0.0

    def abort_when_told() -> None:
        nonlocal aborted_at
        sys.stdin.readline()
        aborted_at = time.monotonic()
        collectives.abort()

    threading.Thread(target=abort_when_told).start()
    failure = ""
    try:
        collectives.barrier()
    except RankFailedError as error:
        failure = str(error)
    seconds = time.monotonic() - aborted_at
    collectives.close()
    say(error=failure, seconds=seconds, opened=opened())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
