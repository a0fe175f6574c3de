"""The interface between a load generator and a server: a stream that one task writes and another reads."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
from ringline.errors import RingError, from_rpc


class LoadError(Exception):
    """The measurement cannot continue; the text is one sentence for the user."""

    def __init__(self, message: str, error: RingError | None = None) -> None:
        """``error``: the error that ended the call, if that is the reason."""
        super().__init__(message)
        self.error = error

    @classmethod
    def of_call(cls, failure: grpc.aio.AioRpcError) -> LoadError:
        error = from_rpc(failure)
        return cls(f"{error.code.name}: {error}", error)


@dataclass(frozen=True, slots=True)
class Target:
    """The measured model, and the limits of its server on requests."""

    model: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    max_live_requests: int | None
    """The server's limit on live requests; None if not known."""


class LoadListener(Protocol):
    """Receives a load stream's output. Requests are identified by number; ``now`` is ``time.perf_counter()``."""

    def on_tokens(self, number: int, position: int, count: int, now: float) -> None: ...

    def on_finished(self, number: int, now: float, problem: str | None) -> None: ...


class LoadStream(ABC):
    """Sends requests to a server and reads its answers. An async context manager: enter to connect."""

    target: Target
    """Set on connecting."""

    def __init__(self) -> None:
        self.listener: LoadListener | None = None
        self._pending = asyncio.Event()
        """Set when there is something to write."""
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        """Build the messages of requests 0, 1, … before the measurement starts."""

    @abstractmethod
    def send(self, number: int) -> None:
        """Queue a prepared request for writing."""

    async def wait_for(self, work: Coroutine[Any, Any, object]) -> None:
        """Await ``work``; raise LoadError if the stream ends before it is done."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait((task, self._stream), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._stream.result()
        finally:
            task.cancel()

    async def __aenter__(self) -> Self:
        try:
            self.target = await self._connect()
        except grpc.aio.AioRpcError as failure:
            await self._disconnect()
            raise LoadError.of_call(failure) from None
        self._tasks = [asyncio.create_task(self._guarded_write()), asyncio.create_task(self._guarded_read())]
        self._stream = asyncio.gather(*self._tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self._finish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._stream, return_exceptions=True)
        await self._disconnect()

    async def _finish(self) -> None:
        """Send final messages before the stream is closed: none by default."""
        return

    async def _guarded_write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader learns why
            await self._write()

    async def _guarded_read(self) -> None:
        try:
            await self._read()
        except grpc.aio.AioRpcError as failure:
            raise LoadError.of_call(failure) from None

    @abstractmethod
    async def _connect(self) -> Target: ...

    @abstractmethod
    async def _disconnect(self) -> None: ...

    @abstractmethod
    async def _write(self) -> None:
        """Write queued messages, forever."""

    @abstractmethod
    async def _read(self) -> None:
        """Pass all output to the listener; raise LoadError when the stream ends."""
