"""Several calls at once, whose answers come in the order of the calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def in_order(call: Callable[[_Item], _Answer], items: Iterable[_Item], most: int) -> Iterator[_Answer]:
    """The answers to ``items``, read as needed, with ``most`` calls at once, in threads.

    The first error ends it: no further call begins, those under way are left to themselves.
    """
    left, calls = iter(items), deque[Future[_Answer]]()
    threads = ThreadPoolExecutor(most, "ringline")
    try:
        while True:
            # As many again wait, so that the others go on while the first one takes longest.
            calls.extend(threads.submit(call, item) for item in islice(left, 2 * most - len(calls)))
            if not calls:
                return
            yield calls.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


async def all_in_order(
    call: Callable[[_Item], Coroutine[Any, Any, _Answer]], items: Iterable[_Item], most: int
) -> list[_Answer]:
    """Like ``in_order``, for asyncio; calls under way are cancelled at an error."""
    room = asyncio.Semaphore(most)
    tasks: list[asyncio.Task[_Answer]] = []

    async def called(item: _Item) -> _Answer:
        try:
            return await call(item)
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                await room.acquire()
                tasks.append(group.create_task(called(item)))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
