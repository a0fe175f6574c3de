"""Ctrl-C while an answer streams."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

import ringline


@contextmanager
def closed_by_interrupt(stream: ringline.Stream) -> Iterator[None]:
    """Ctrl-C closes the stream, and ``KeyboardInterrupt`` is raised at the end of the block.

    Raised wherever the thread is, it would leave gRPC's locks held, and whoever takes one then would wait for ever. The
    second Ctrl-C is raised at once.
    """
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield
        return
    pressed: list[bool] = []
    told: SimpleQueue[bool] = SimpleQueue()  # the one kind of queue that a signal handler may put into

    def press(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)
        told.put(True)

    def close() -> None:
        if told.get():
            stream.close()

    threading.Thread(target=close, daemon=True).start()
    previous = signal.signal(signal.SIGINT, press)
    try:
        yield
    except ringline.RingError:
        if not pressed:
            raise
    finally:
        signal.signal(signal.SIGINT, previous)
        told.put(False)
    if pressed:
        raise KeyboardInterrupt
