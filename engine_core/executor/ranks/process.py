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
    """A descriptor that becomes readable when the process has ended; None if only its connections show that."""

    def __str__(self) -> str:
        return f"rank {self.rank}"

    @abstractmethod
    def ending(self, seconds: float) -> str | None:
        """How it ended, and its last output, as the end of a sentence; None if unknown after ``seconds``."""

    def wants_to_run(self) -> bool:
        """Whether it runs, or would with a free processor; False if stopped or unknown."""
        return False

    @abstractmethod
    def kill(self) -> None:
        """End it at once. Idempotent; from any thread."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait for its end, and reap it; whether it has ended."""

    def close(self) -> None:
        """Close all descriptors. Idempotent."""
        self.connections.close()
