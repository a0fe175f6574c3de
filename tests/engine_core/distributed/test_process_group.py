"""gloo between processes: what arrives, how long a wait is, and what a peer that is gone, or silent, comes to."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

from engine_core.distributed.process_group import ProcessGroupCollectives, ProcessGroupLinks, gloo_group
from engine_core.errors import RankFailedError

HOST = "127.0.0.1"
CPU = torch.device("cpu")
Body = Callable[[int, int, TCPStore], Any]


def _child(body: Body, rank: int, size: int, port: int, results: Connection) -> None:
    store = TCPStore(HOST, port, None, False, timedelta(seconds=10), wait_for_workers=False)
    results.send(body(rank, size, store))
    os._exit(0)  # as a worker does: the end of a group waits for operations under way


@contextmanager
def ranks(size: int, body: Body) -> Iterator[tuple[list[Any], list[Connection]]]:
    """Processes that run ``body`` each; killed at the end.

    They are forked by a process without threads: a fork of this one may find a lock taken by a thread of gRPC.
    """
    store = TCPStore(HOST, 0, None, True, timedelta(seconds=10), wait_for_workers=False)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    pipes = [server.Pipe(duplex=False) for _ in range(size)]
    processes = [
        server.Process(target=_child, args=(body, rank, size, store.port, pipes[rank][1])) for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        yield processes, [receiving for receiving, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def results_of(size: int, body: Body) -> list[Any]:
    with ranks(size, body) as (_, pipes):
        assert all(pipe.poll(20) for pipe in pipes)
        return [pipe.recv() for pipe in pipes]


def collectives(rank: int, size: int, store: TCPStore, timeout: float = 10.0) -> ProcessGroupCollectives:
    return ProcessGroupCollectives(gloo_group(store, "stage", rank, size, HOST, timeout), timeout)


WIDTHS = [16, 48, 32]


def _gathers(rank: int, size: int, store: TCPStore) -> list[bool]:
    ours = collectives(rank, size, store)
    widths = WIDTHS[:size]
    equal = []
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for rows, groups in ((1, 1), (5, 1), (3, 4)):
            whole = torch.arange(rows * groups * sum(widths)).view(rows, groups, -1).to(dtype)
            part = whole.split(widths, dim=-1)[rank].reshape(rows, -1)
            equal.append(torch.equal(ours.all_gather(part, widths, groups=groups), whole.view(rows, -1)))
            # Rows of a wider matrix: a view that is not dense.
            wide = torch.zeros(rows, 2 * part.shape[1], dtype=dtype)
            wide[:, : part.shape[1]] = part
            view = wide[:, : part.shape[1]]
            equal.append(torch.equal(ours.all_gather(view, widths, groups=groups), whole.view(rows, -1)))
    ours.barrier()
    return equal


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_have_what_each_has(size: int) -> None:
    assert all(all(equal) for equal in results_of(size, _gathers))


def _rows(rank: int, size: int, store: TCPStore) -> bool:
    ours = collectives(rank, size, store)
    ids = torch.tensor([0, 5, 2, 7, 3, 1, 6, 4], dtype=torch.int32)
    owned = [range(3), range(3, 8), range(8, 8)][:size]
    whole = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    own = torch.tensor([int(each) in owned[rank] for each in ids])
    mine = torch.where(own[:, None], whole, torch.full_like(whole, float("nan")))
    return torch.equal(ours.gather_rows(mine, ids, owned, groups=2), whole)


@pytest.mark.parametrize("size", [2, 3])
def test_each_row_comes_from_the_rank_that_owns_its_id(size: int) -> None:
    assert results_of(size, _rows) == [True] * size


def _gathers_another_width(rank: int, size: int, store: TCPStore) -> str:
    try:
        collectives(rank, size, store).all_gather(torch.zeros(2, 3), [4])
    except ValueError as error:
        return str(error)
    return ""


def test_a_part_of_another_width_than_was_said_is_refused() -> None:
    assert results_of(1, _gathers_another_width) == ["(2, 3) is not 1 rows of 4 each"]


def links(rank: int, size: int, store: TCPStore, timeout: float = 10.0) -> ProcessGroupLinks:
    return ProcessGroupLinks(gloo_group(store, "stages", rank, size, HOST, timeout), CPU)


STEPS = 7


def _passes_on(rank: int, size: int, store: TCPStore) -> list[list[float]]:
    ours, seen = links(rank, size, store), []
    for step in range(STEPS):
        hidden, other = torch.full((2, 3), float(step)), torch.full((4,), step, dtype=torch.bfloat16)
        if rank > 0:
            hidden, other = ours.receive((2, 3), torch.float32), ours.receive((4,), torch.bfloat16)
        seen.append([hidden.sum().item(), other.sum().item()])
        if rank < size - 1:
            for tensor in (hidden, other):
                ours.send(tensor)
                tensor.fill_(-1.0)  # the buffer is for the next step
        else:
            time.sleep(0.02)  # the stages before run ahead
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(size)], timedelta(seconds=10))
    return seen


@pytest.mark.parametrize("size", [2, 3])
def test_tensors_arrive_in_order_though_their_buffers_are_used_again(size: int) -> None:
    assert results_of(size, _passes_on) == [[[6.0 * step, 4.0 * step] for step in range(STEPS)]] * size


def _sends_to_one_that_sleeps(rank: int, size: int, store: TCPStore) -> float:
    ours = links(rank, size, store)
    start = time.monotonic()
    if rank == 0:
        ours.send(torch.zeros(1 << 20))
        took = time.monotonic() - start
        store.wait(["received"], timedelta(seconds=10))
        return took
    time.sleep(0.5)
    ours.receive((1 << 20,), torch.float32)
    store.set("received", "")
    return 0.0


def test_a_stage_does_not_wait_for_the_next_one_to_receive() -> None:
    assert results_of(2, _sends_to_one_that_sleeps)[0] < 0.4


def _failure_of(call: Callable[[], object]) -> tuple[float, str]:
    start = time.monotonic()
    try:
        call()
    except RankFailedError as error:
        return time.monotonic() - start, str(error)
    return time.monotonic() - start, "no failure"


def _waits_for_a_gather(rank: int, size: int, store: TCPStore) -> tuple[float, str]:
    ours = collectives(rank, size, store)
    if rank:
        store.set("here", "")
        time.sleep(60)
    return _failure_of(ours.barrier)


def _waits_for_a_tensor(rank: int, size: int, store: TCPStore) -> tuple[float, str]:
    ours = links(rank, size, store)
    if rank == 0:
        store.set("here", "")
        time.sleep(60)
    return _failure_of(lambda: ours.receive((4,), torch.float32))


@pytest.mark.parametrize(("body", "dies"), [(_waits_for_a_gather, 1), (_waits_for_a_tensor, 0)])
def test_a_rank_that_is_killed_is_missed_at_once(body: Body, dies: int) -> None:
    with ranks(2, body) as (processes, pipes):
        assert not pipes[1 - dies].poll(2.0)
        processes[dies].kill()
        assert pipes[1 - dies].poll(2.0)
        _, why = pipes[1 - dies].recv()
    assert "another rank does not answer, or is gone" in why


def _waits_for_the_silent(rank: int, size: int, store: TCPStore) -> list[tuple[float, str]]:
    ours, tensors = collectives(rank, size, store, timeout=1.0), links(rank, size, store, timeout=1.0)
    if rank == 0:
        time.sleep(60)
    return [_failure_of(ours.barrier), _failure_of(lambda: tensors.receive((4,), torch.float32))]


def test_no_wait_for_a_silent_rank_is_longer_than_its_limit() -> None:
    with ranks(2, _waits_for_the_silent) as (_, pipes):
        assert pipes[1].poll(20)
        failures = pipes[1].recv()
    assert all(0.5 < seconds < 4.0 and "does not answer" in why for seconds, why in failures)


def _is_told_to_end(rank: int, size: int, store: TCPStore) -> tuple[float, str] | None:
    ours = collectives(rank, size, store)
    if rank:
        time.sleep(60)
    threading.Timer(0.3, ours.abort).start()
    failure = _failure_of(ours.barrier)
    assert _failure_of(ours.barrier)[0] < 0.1
    return failure


def test_who_waits_can_be_told_to_end_by_another_thread() -> None:
    with ranks(2, _is_told_to_end) as (_, pipes):
        assert pipes[0].poll(10)
        seconds, why = pipes[0].recv()
    assert 0.2 < seconds < 2.0
    assert "so this one ends" in why


def _comes_alone(rank: int, size: int, store: TCPStore) -> tuple[float, str]:
    return _failure_of(lambda: gloo_group(store, "stage", 0, 2, HOST, 1.0))


def test_a_rank_that_does_not_come_is_an_error_after_the_limit() -> None:
    ((seconds, why),) = results_of(1, _comes_alone)
    assert seconds < 5.0
    assert "does not reach the others over 127.0.0.1" in why
