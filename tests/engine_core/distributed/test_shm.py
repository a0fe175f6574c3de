"""Ranks that share memory put together exactly what each of them has, however late one of them reads it."""

from __future__ import annotations

import gc
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine_core.distributed import shm
from engine_core.distributed.shm import ShmCollectives
from engine_core.errors import RankFailedError
from engine_core.kernels.capture import BufferPool, Captured, capturing
from engine_core.kernels.library import load_kernels

from .rank_threads import on_ranks
from .rounds import matrix, own, run_rounds

ROOT = Path(__file__).parents[3]
DISAGREE = "do not make the same calls"


@pytest.mark.usefixtures("restored_threads")
def test_threads_share_large_copies() -> None:
    def gathered(ranks: ShmCollectives) -> None:
        torch.set_num_threads(2)
        full = matrix(700, 3000, torch.float32, 1)
        assert torch.equal(ranks.all_gather(own(full, [1000, 2000], ranks.rank), [1000, 2000]), full)

    on_ranks(2, gathered)


def test_arguments_that_do_not_fit_are_refused() -> None:
    def refused(ranks: ShmCollectives) -> None:
        with pytest.raises(ValueError, match=r"\(2, 3\) is not 1 rows of 4 each"):
            ranks.all_gather(torch.ones(2, 3), [4])
        with pytest.raises(ValueError, match=r"ids must be \[2\] int32, dense, not \(2,\) torch.int64"):
            ranks.gather_rows(torch.ones(2, 3), torch.ones(2, dtype=torch.int64), [range(2)])

    on_ranks(1, refused)


def test_nothing_is_written_that_a_rank_may_still_read() -> None:
    on_ranks(3, lambda ranks: run_rounds(ranks, 600, seed=3, most_delay=0.0005))


def test_captured_gathers_take_the_rows_of_each_step() -> None:
    """Also those after a selection of rows, and though other results are alive that were not when it was captured."""
    widths, kernels = [24, 8], load_kernels()

    def replayed(ranks: ShmCollectives) -> None:
        captured = Captured(BufferPool(40), kernels.replay)
        x, ids = torch.empty(40, widths[ranks.rank]), torch.zeros(40, dtype=torch.int32)
        with capturing(captured):
            full = ranks.all_gather(x, widths)
            selected = captured.pool.take(40, 32, torch.float32)
            kernels.select_rows.run(x=full, output=selected, rows=40, row_bytes=128, x_stride=128)
            output = ranks.gather_rows(selected, ids, [range(1, 2), range(1)])
            del full
        alive = []
        for rows, selection in ((40, [39, 0]), (1, [0]), (17, [3, 5, 16]), (0, []), (40, [7])):
            expected, places = matrix(rows, 32, torch.float32, rows), torch.tensor(selection, dtype=torch.int64)
            x[:rows] = own(expected, widths, ranks.rank)
            selected.fill_(ranks.rank - 1)  # what rank 1 puts out, rank 0 must not
            captured.replay(rows=rows, selected=places.data_ptr(), num_selected=len(places), num_threads=1)
            assert torch.equal(output[: len(places)], expected[places])
            alive.append((ranks.all_gather(x, widths), x.clone()))
        for gathered, mine in alive:
            assert torch.equal(own(gathered, widths, ranks.rank), mine)

    on_ranks(2, replayed)


def test_captured_calls_outlive_what_made_them() -> None:
    captured, x = Captured(BufferPool(4), load_kernels().replay), torch.ones(4, 8)
    ranks = ShmCollectives.join(secrets.token_hex(8), 0, 1, 1.0, load_kernels())
    with capturing(captured):
        ranks.all_gather(x, [8])
    ranks.close()
    del ranks
    gc.collect()
    with pytest.raises(RankFailedError):
        captured.replay(rows=4, num_threads=1)


def test_the_system_lets_nobody_write_to_a_result_but_the_rank_that_is_to_change_it() -> None:
    def is_writable(tensor: torch.Tensor) -> bool:
        for line in Path("/proc/self/maps").read_text().splitlines():
            places, access, *_ = line.split()
            start, end = (int(place, 16) for place in places.split("-"))
            if start <= tensor.data_ptr() < end:
                return "w" in access
        raise AssertionError("it is nowhere")

    def gathered(ranks: ShmCollectives) -> list[bool]:
        x, captured = torch.ones(2, 4), Captured(BufferPool(4), load_kernels().replay)
        columns, rows = ranks.all_gather(x, [4, 4]), ranks.gather_rows(x, x[:, 0].int(), [range(1), range(1, 2)])
        with capturing(captured):
            in_capture = ranks.all_gather(x, [4, 4])
        return [is_writable(each) for each in (x, columns, rows, in_capture, ranks.all_gather(x, [4, 4], writer=1))]

    assert on_ranks(2, gathered) == [[True, False, False, False, False], [True, False, False, False, True]]


def test_memory_is_used_again() -> None:
    """Steps of ever more rows take no more than a few times what the largest takes."""

    def places(ranks: ShmCollectives) -> set[int]:
        found = set()
        for rows in range(1, 400):
            x = torch.ones(rows, 1000)
            found.add(ranks.all_gather(x, [1000, 1000]).data_ptr())
            first, second = ranks.all_gather(x, [1000, 1000]), ranks.all_gather(x, [1000, 1000])
            assert first.data_ptr() != second.data_ptr()
            found |= {first.data_ptr(), second.data_ptr()}
        return {place - min(found) for place in found}

    one, other = on_ranks(2, places)
    assert one == other
    assert len(one) <= 5 * 3, "a few for each power of two from 1 MiB to 4 MiB"


def test_too_many_results_are_an_error() -> None:
    def refused(ranks: ShmCollectives) -> None:
        kept = [ranks.all_gather(torch.ones(1, 1), [1]) for _ in range(256)]
        with pytest.raises(MemoryError, match="more than 256 results that ranks share are in use"):
            ranks.all_gather(torch.ones(1, 1), [1])
        del kept
        ranks.barrier()
        ranks.all_gather(torch.ones(1, 1), [1])

    on_ranks(1, refused)


def test_too_large_results_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "REGION_BYTES", 1 << 20)  # of which the beginning is taken

    def refused(ranks: ShmCollectives) -> None:
        with pytest.raises(MemoryError, match="results that ranks share"):
            ranks.all_gather(torch.ones(1, 1), [1])

    on_ranks(1, refused)


def failing(call: Callable[[], object]) -> float:
    """When ``call``, which other ranks do not make, has raised."""
    with pytest.raises(RankFailedError, match="another rank of the engine has failed"):
        call()
    return time.monotonic()


@pytest.mark.parametrize("delay", [0.0, 0.1], ids=["busy", "asleep"])
@pytest.mark.parametrize("leave", [ShmCollectives.abort, ShmCollectives.close])
def test_ranks_that_wait_hear_that_one_has_failed(leave: Callable[[ShmCollectives], None], delay: float) -> None:
    started = threading.Barrier(3)

    def run(ranks: ShmCollectives) -> float:
        captured, x = Captured(BufferPool(4), load_kernels().replay), torch.ones(4, 2)
        with capturing(captured):
            ranks.all_gather(x, [2, 2, 2])
        started.wait()
        if ranks.rank == 2:
            time.sleep(delay)
            left = time.monotonic()
            leave(ranks)
            return left
        ended = failing(lambda: captured.replay(rows=3, num_threads=1))
        failing(ranks.barrier)
        failing(lambda: ranks.all_gather(x, [2, 2, 2]))
        failing(lambda: captured.replay(rows=3, num_threads=1))
        return ended

    *ended, left = on_ranks(3, run)
    assert max(ended) - left < 0.2


def test_who_has_left_makes_no_calls() -> None:
    def left(ranks: ShmCollectives) -> None:
        ranks.close()
        ranks.close()
        ranks.abort()
        with pytest.raises(RankFailedError, match="this rank has left"):
            ranks.barrier()

    on_ranks(1, left)


def gathers_more(ranks: ShmCollectives, x: torch.Tensor) -> None:
    ranks.all_gather(x[: 4 + ranks.rank], [8, 8])


def cuts_differently(ranks: ShmCollectives, x: torch.Tensor) -> None:
    widths = [[8, 4], [4, 8]][ranks.rank]
    ranks.all_gather(x[:, : widths[ranks.rank]], widths)


def calls_something_else(ranks: ShmCollectives, x: torch.Tensor) -> None:
    if ranks.rank == 0:
        ranks.barrier()
    else:
        ranks.all_gather(x, [8, 8])


def chooses_another_slot(ranks: ShmCollectives, x: torch.Tensor) -> None:
    ranks.all_gather(x, [8, 8])
    ranks.barrier()
    ranks._slots._busy = ranks.rank
    ranks.all_gather(x, [8, 8])


def replays_more(ranks: ShmCollectives, x: torch.Tensor) -> None:
    captured = Captured(BufferPool(8), load_kernels().replay)
    with capturing(captured):
        ranks.all_gather(x, [8, 8])
    captured.replay(rows=2 + ranks.rank, num_threads=1)


@pytest.mark.parametrize(
    "call", [gathers_more, cuts_differently, calls_something_else, chooses_another_slot, replays_more]
)
def test_ranks_that_do_not_do_the_same_are_stopped(call: Callable[[ShmCollectives, torch.Tensor], None]) -> None:
    def stopped(ranks: ShmCollectives) -> None:
        with pytest.raises(RankFailedError, match=DISAGREE):
            call(ranks, torch.ones(8, 8))
        failing(ranks.barrier)

    on_ranks(2, stopped)


def test_processes_gather_and_one_survives_the_other() -> None:
    before, key = sorted(Path("/dev/shm").iterdir()), secrets.token_hex(8)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = Path(__file__).with_name("rank_process.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, program, key, str(rank), "2"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert json.loads(rank.stdout.readline())["rounds"] > 0
        ranks[1].kill()
        ranks[1].wait()
        with pytest.raises(subprocess.TimeoutExpired):
            ranks[0].wait(0.1)
        said, _ = ranks[0].communicate("abort\n", timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    end = json.loads(said)
    assert "another rank of the engine has failed" in end["error"]
    assert end["seconds"] < 0.2
    assert end["opened"] == []
    assert ranks[0].returncode == 0
    assert sorted(Path("/dev/shm").iterdir()) == before
