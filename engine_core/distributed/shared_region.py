"""Memory that the ranks of one host share: rank 0 makes it and hands it to the others. Each rank maps it twice: for
writing, and read-only.

It has no name in any file system. Its descriptor is passed over a unix socket in the abstract namespace, named by a
random key that all ranks know, and only to processes of the same user.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from engine_core.errors import RankFailedError

REGION_BYTES = 1 << 36
"""Bytes of address space. Memory is taken page by page, on first write."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HELLO = struct.Struct("=II")
"""(rank, number of ranks it expects)"""
_CREDENTIALS = struct.Struct("=iII")
"""(pid, uid, gid)"""
_RETRY_SECONDS = 0.01
_HELLO_SECONDS = 1.0
"""Limits how long a silent peer holds up the others."""

_BACKLOG = 128
"""Waiting connections: any process of the host may connect, and rank 0 sees whose it is only after accepting."""


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """One memory mapped at two addresses of this process."""

    memory: mmap.mmap
    to_read: mmap.mmap
    """Mapped read-only."""

    def close(self) -> None:
        self.memory.close()
        self.to_read.close()


def share_region(key: str, rank: int, size: int, timeout: float) -> SharedRegion:
    """``REGION_BYTES`` of zeros that ``size`` ranks share. Raises ``RankFailedError``, ``MemoryError``."""
    deadline = time.monotonic() + timeout
    with _made() if rank == 0 else _received(key, rank, size, timeout, deadline) as descriptor:
        if rank == 0 and size > 1:
            _hand_out(descriptor, key, size, timeout, deadline)
        try:
            memory, to_read = (
                mmap.mmap(descriptor, REGION_BYTES, mmap.MAP_SHARED, access)
                for access in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ)
            )
            return SharedRegion(memory, to_read)
        except (OSError, ValueError) as error:
            raise MemoryError(
                f"twice {REGION_BYTES >> 30} GiB of addresses for memory that ranks share are refused ({error}): "
                "raise the limit of address space (ulimit -v)"
            ) from error


@contextlib.contextmanager
def _made() -> Iterator[int]:
    descriptor = os.memfd_create("ringline-ranks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        try:
            os.ftruncate(descriptor, REGION_BYTES)
        except OSError as error:
            raise MemoryError(
                f"{REGION_BYTES >> 30} GiB for memory that ranks share, of which little is taken, are refused "
                f"({error.strerror}): raise the limit of a file's size (ulimit -f)"
            ) from error
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)  # no rank can shrink it, which would fault another's access
        yield descriptor
    finally:
        os.close(descriptor)


def _hand_out(descriptor: int, key: str, size: int, timeout: float, deadline: float) -> None:
    """Pass the descriptor to every other rank, once."""
    missing = set(range(1, size))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(_address(key))
        except OSError as error:
            raise RankFailedError(f"memory that ranks share cannot be offered: {error.strerror}") from error
        listener.listen(_BACKLOG)
        while missing:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                ranks = ", ".join(map(str, sorted(missing)))
                raise RankFailedError(f"tensor-parallel rank {ranks} did not join within {timeout:g} s") from None
            with connection, contextlib.suppress(OSError):  # a rank that left or stays silent remains missing
                if not _is_of_this_user(connection):
                    continue
                connection.settimeout(_HELLO_SECONDS)
                hello = connection.recv(_HELLO.size)
                if refusal := _refusal(hello, missing, size):
                    connection.send(refusal.encode())
                    continue
                socket.send_fds(connection, [b"\0"], [descriptor])
                missing.discard(_HELLO.unpack(hello)[0])


def _refusal(hello: bytes, missing: set[int], size: int) -> str:
    """Why a peer does not get the memory; empty if it does."""
    if len(hello) != _HELLO.size:
        return "it does not say which rank it is"
    rank, its_size = _HELLO.unpack(hello)
    if its_size != size:
        return f"it expects {its_size} ranks, there are {size}"
    if rank not in missing:
        return f"rank {rank} has joined already" if 0 < rank < size else f"there is no rank {rank} of {size}"
    return ""


@contextlib.contextmanager
def _received(key: str, rank: int, size: int, timeout: float, deadline: float) -> Iterator[int]:
    descriptor = _receive(key, rank, size, timeout, deadline)
    try:
        if os.fstat(descriptor).st_size != REGION_BYTES or fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) != _SEALS:
            raise RankFailedError("rank 0 shares memory of another kind: all ranks must be of one release")
        yield descriptor
    finally:
        os.close(descriptor)


def _receive(key: str, rank: int, size: int, timeout: float, deadline: float) -> int:
    while (left := deadline - time.monotonic()) > 0:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(left)
            try:
                connection.connect(_address(key))
            except (ConnectionRefusedError, BlockingIOError):  # rank 0 does not listen yet, or its backlog is full
                time.sleep(min(left, _RETRY_SECONDS))
                continue
            try:
                if not _is_of_this_user(connection):
                    raise RankFailedError("the memory that ranks share is offered by another user's process")
                connection.send(_HELLO.pack(rank, size))
                answer, descriptors, _, _ = socket.recv_fds(connection, 1024, 1, socket.MSG_CMSG_CLOEXEC)
            except TimeoutError:
                break
            except OSError as error:
                raise RankFailedError(f"rank 0 ended before it shared its memory: {error.strerror}") from error
            if descriptors:
                return descriptors[0]
            why = answer.decode(errors="replace") or "it ended"
            raise RankFailedError(f"rank 0 refuses to share memory with rank {rank}: {why}")
    raise RankFailedError(f"rank 0 did not share its memory with rank {rank} within {timeout:g} s")


def _address(key: str) -> bytes:
    return b"\0ringline-" + key.encode()


def _is_of_this_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return bool(uid == os.getuid())
