"""Digests of weights, computed as they are loaded: of every byte of a model, and of the bytes that one rank takes."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import xxhash

_BLOCK_BYTES = 2**24


def _nothing(count: int) -> None:
    pass


class Digest(ABC):
    """Records the bytes that are loaded."""

    @abstractmethod
    def add(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        start: int,
        data: memoryview,
        before: Callable[[int], None] = _nothing,
    ) -> None:
        """Add ``data``, a tensor's stored bytes from byte ``start``; calls ``before(n)`` before reading n of them."""


@dataclass(frozen=True, slots=True)
class TakenBytes:
    """A range of a tensor's bytes that a rank has taken."""

    name: str
    start: int
    count: int
    digest: bytes

    @classmethod
    def of(cls, name: str, dtype: torch.dtype, shape: tuple[int, ...], start: int, data: memoryview) -> TakenBytes:
        """``data`` of a tensor of that type and shape."""
        digest = xxhash.xxh3_128(_kind(dtype, shape))
        digest.update(data)
        return cls(name, start, len(data), digest.digest())


class RankDigest(Digest):
    """Lists the bytes that one of several ranks takes."""

    def __init__(self) -> None:
        self.taken: list[TakenBytes] = []

    def add(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        start: int,
        data: memoryview,
        before: Callable[[int], None] = _nothing,
    ) -> None:
        before(len(data))
        self.taken.append(TakenBytes.of(name, dtype, shape, start, data))


class WeightsDigest(Digest):
    """A hash of every byte of the tensors added, which must be whole.

    A tensor is hashed in blocks of rows whose size depends on its shape and type alone. Tensors are identified by name,
    so the digest depends neither on their order nor on their files.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, bytes] = {}
        self.seconds = 0.0
        """Time spent hashing."""

    def add(
        self,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        start: int,
        data: memoryview,
        before: Callable[[int], None] = _nothing,
    ) -> None:
        if start != 0 or len(data) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(data)} bytes from byte {start} on are not all of {name}")
        began = time.perf_counter()
        digest = xxhash.xxh3_128(_kind(dtype, shape))
        row_bytes = len(data) // shape[0] if shape and data else 1
        step = max(1, _BLOCK_BYTES // row_bytes) * row_bytes
        for at in range(0, len(data), step):
            block = data[at : at + step]
            before(len(block))
            digest.update(xxhash.xxh3_128_digest(block))
        self._tensors[name] = digest.digest()
        self.seconds += time.perf_counter() - began

    def hexdigest(self) -> str:
        """32 hex digits."""
        return digest_of(*(f"{name} {self._tensors[name].hex()}" for name in sorted(self._tensors)))


@functools.lru_cache
def _kind(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{dtype} {list(shape)}".encode()


def digest_of(*parts: str) -> str:
    """32 hex digits; equal for equal sequences of parts."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))  # so that boundaries between parts count
        digest.update(encoded)
    return digest.hexdigest()
