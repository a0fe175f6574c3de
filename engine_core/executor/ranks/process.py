"""A rank's process as its executor sees it, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine_core.distributed.ranks import Rank
from engine_core.executor.ranks.connection import RankConnections


class RankProcess(ABC):
    """A running process, and the connections to it."""

    rank: Rank
    connections: RankConnections
    ended: int | None
    """A descriptor that becomes readable when the process has ended; None where only its connections tell."""

    def __str__(self) -> str:
        return f"rank {self.rank}"

    @abstractmethod
    def ending(self, seconds: float) -> str | None:
        """How it ended, and its last words, as the end of a sentence; None if that is not known within ``seconds``."""

    def wants_to_run(self) -> bool:
        """Whether it computes, or would if it had a processor; False if that is not known. A stopped one does not."""
        return False

    @abstractmethod
    def kill(self) -> None:
        """End it now, whatever it does. Idempotent; from any thread."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait for its end, and let nothing of it remain; whether it has ended."""

    def close(self) -> None:
        """Close all descriptors. Idempotent."""
        self.connections.close()
