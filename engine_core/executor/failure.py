"""Why an executor has stopped: its first error, reported once to every registered callback."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Failure:
    """An executor's first error, and the callbacks for it. Thread-safe."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._is_telling = False
        self._is_known = threading.Event()
        self._is_told = threading.Event()

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Register ``callback``: called once with the error, from any thread; at once after ``tell``."""
        with self._lock:
            if not self._is_telling:
                self._callbacks.append(callback)
                return
        assert self.error is not None
        callback(self.error)

    def set(self, error: BaseException) -> bool:
        """Record ``error``, then call ``tell``; False if another error came first."""
        with self._lock:
            if self.error is not None:
                return False
            self.error = error
        self._is_known.set()
        return True

    def tell(self) -> None:
        """Call the callbacks."""
        assert self.error is not None
        with self._lock:
            self._is_telling = True
        try:
            for callback in self._callbacks:
                callback(self.error)
        finally:
            self._is_told.set()

    def wait(self, seconds: float) -> None:
        """Wait for an error, at most ``seconds``."""
        self._is_known.wait(seconds)

    def told(self, seconds: float) -> BaseException:
        """The error, which must be set, once the callbacks have returned or ``seconds`` have passed."""
        self._is_told.wait(seconds)
        assert self.error is not None
        return self.error
