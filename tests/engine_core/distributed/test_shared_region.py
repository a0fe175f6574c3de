"""Memory is shared by the ranks that have the key and belong to the same user, and by nobody else."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from engine_core.distributed import shared_region
from engine_core.distributed.shared_region import SharedRegion, share_region
from engine_core.errors import RankFailedError

KEY_BYTES = 8


@pytest.fixture
def key() -> str:
    return secrets.token_hex(KEY_BYTES)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def connected(key: str) -> socket.socket:
    """A peer of rank 0, once that listens."""
    for _ in range(1000):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.connect(f"\0ringline-{key}")
        except ConnectionRefusedError:
            peer.close()
            time.sleep(0.005)
        else:
            peer.settimeout(5)
            return peer
    raise AssertionError("rank 0 does not listen")


def answer(key: str, hello: bytes) -> tuple[bytes, list[int]]:
    with connected(key) as peer:
        peer.send(hello)
        said, descriptors, _, _ = socket.recv_fds(peer, 1024, 1)
        return said, descriptors


def error_of(future: Future[SharedRegion]) -> str:
    error = future.exception(10)
    assert isinstance(error, RankFailedError)
    return str(error)


def test_all_ranks_see_the_same(key: str, pool: ThreadPoolExecutor) -> None:
    regions = [each.result(10) for each in [pool.submit(share_region, key, rank, 3, 10.0) for rank in (2, 0, 1)]]
    regions[0].memory[5000] = 7
    assert [mapped[5000] for each in regions for mapped in (each.memory, each.to_read)] == [7] * 6
    assert [len(mapped) for mapped in (regions[0].memory, regions[0].to_read)] == [shared_region.REGION_BYTES] * 2
    with pytest.raises(TypeError, match="readonly"):
        regions[0].to_read[5000] = 8
    for region in regions:
        region.close()


def test_nothing_is_left(key: str, pool: ThreadPoolExecutor) -> None:
    def listening() -> bool:
        return key in Path("/proc/net/unix").read_text()

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for region in [each.result(10) for each in [pool.submit(share_region, key, rank, 2, 10.0) for rank in (0, 1)]]:
        region.close()
    assert not listening()
    with pytest.raises(RankFailedError):
        share_region(key, 0, 2, 0.05)
    assert not listening()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_rank_that_does_not_come_is_named(key: str, pool: ThreadPoolExecutor) -> None:
    first = pool.submit(share_region, key, 0, 4, 0.3)
    pool.submit(share_region, key, 2, 4, 5.0).result(5).close()
    assert error_of(first) == "tensor-parallel rank 1, 3 did not join within 0.3 s"
    with pytest.raises(RankFailedError, match=r"rank 0 did not share its memory with rank 1 within 0\.1 s"):
        share_region(secrets.token_hex(KEY_BYTES), 1, 2, 0.1)


@pytest.mark.parametrize(
    ("hello", "refusal"),
    [
        (struct.pack("=II", 1, 3), "it expects 3 ranks, there are 2"),
        (struct.pack("=II", 2, 2), "there is no rank 2 of 2"),
        (struct.pack("=II", 0, 2), "there is no rank 0 of 2"),
        (b"hello", "it does not say which rank it is"),
    ],
)
def test_strangers_get_nothing_and_the_rank_still_joins(
    key: str, pool: ThreadPoolExecutor, hello: bytes, refusal: str
) -> None:
    first = pool.submit(share_region, key, 0, 2, 10.0)
    assert answer(key, hello) == (refusal.encode(), [])
    share_region(key, 1, 2, 5.0).close()
    first.result(10).close()


def test_a_rank_joins_once(key: str, pool: ThreadPoolExecutor) -> None:
    first = pool.submit(share_region, key, 0, 3, 10.0)
    share_region(key, 1, 3, 5.0).close()
    with pytest.raises(RankFailedError, match="refuses to share memory with rank 1: rank 1 has joined already"):
        share_region(key, 1, 3, 5.0)
    share_region(key, 2, 3, 5.0).close()
    first.result(10).close()
    with pytest.raises(RankFailedError, match="within 0"):
        share_region(key, 1, 3, 0.05)


def test_who_says_nothing_holds_nobody_up(key: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_region, "_HELLO_SECONDS", 0.1)
    first = pool.submit(share_region, key, 0, 2, 10.0)
    with connected(key):
        share_region(key, 1, 2, 5.0).close()
    first.result(10).close()


def test_another_user_gets_nothing(key: str, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)  # so that every peer belongs to another user
    first = pool.submit(share_region, key, 0, 2, 0.5)
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        answer(key, struct.pack("=II", 1, 2))
    with pytest.raises(RankFailedError, match="offered by another user's process"):
        share_region(key, 1, 2, 5.0)
    assert "rank 1 did not join" in error_of(first)


def test_a_name_in_use_is_an_error(key: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as squatter:
        squatter.bind(f"\0ringline-{key}")
        with pytest.raises(RankFailedError, match="cannot be offered: Address already in use"):
            share_region(key, 0, 2, 1.0)


def test_memory_of_another_kind_is_refused(key: str, pool: ThreadPoolExecutor) -> None:
    """A descriptor whose file can shrink would make an access a signal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0ringline-{key}")
        listener.listen()
        joining = pool.submit(share_region, key, 1, 2, 10.0)
        peer, _ = listener.accept()
        descriptor = os.memfd_create("other")
        os.ftruncate(descriptor, shared_region.REGION_BYTES)
        socket.send_fds(peer, [b"\0"], [descriptor])
        assert "memory of another kind" in error_of(joining)
        os.close(descriptor)
        peer.close()


def test_a_first_rank_that_ends_is_noticed(key: str, pool: ThreadPoolExecutor) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0ringline-{key}")
        listener.listen()
        joining = pool.submit(share_region, key, 1, 2, 10.0)
        listener.accept()[0].close()
        assert "it ended" in error_of(joining) or "ended before" in error_of(joining)


def test_too_few_addresses_are_an_error(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_region, "REGION_BYTES", 1 << 62)
    with pytest.raises(MemoryError, match="addresses for memory that ranks share are refused"):
        share_region(key, 0, 1, 1.0)


def test_a_limit_of_a_files_size_is_an_error_that_names_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "ftruncate", Mock(side_effect=OSError(errno.EFBIG, "File too large")))
    with pytest.raises(MemoryError, match=r"File too large.*ulimit -f"):
        share_region(key, 0, 1, 1.0)


def test_a_rank_comes_again_while_others_crowd_in(key: str, pool: ThreadPoolExecutor) -> None:
    """A queue of connections that is full refuses one at once, as anybody on the host may fill it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as crowded, ExitStack() as crowd:
        crowded.bind(shared_region._address(key))
        crowded.listen(0)
        for _ in range(2):
            one = crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            one.settimeout(0.1)
            with suppress(OSError):
                one.connect(shared_region._address(key))
        second = pool.submit(share_region, key, 1, 2, 10.0)
        time.sleep(0.2)
        assert not second.done()
    first = pool.submit(share_region, key, 0, 2, 10.0)
    first.result().close()
    second.result().close()
