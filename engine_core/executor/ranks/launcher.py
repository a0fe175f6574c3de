"""The interface that starts the processes of ranks, and knows where they are."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import Rank
from engine_core.executor.ranks.process import RankProcess


class RankLauncher(ABC):
    """Starts the ranks of one engine."""

    silence: ClassVar[float] = 0.7
    """Seconds without a heartbeat after which a rank counts as lost."""
    host = "127.0.0.1"
    """The address of this host that every rank reaches; known after ``launch``."""

    def __init__(self, config: EngineConfig, name: str) -> None:
        """``name``: of the engine, for process titles."""
        self.config = config
        self.name = name or f"pid {os.getpid()}"

    @abstractmethod
    def launch(self) -> Sequence[RankProcess]:
        """Start the processes, returned by rank. Raises ``EngineError``; on any error, leaves no process behind."""

    def config_of(self, rank: Rank) -> EngineConfig:
        """The configuration for a rank's worker."""
        return self.config

    def title(self, rank: Rank) -> str:
        """Title of a rank's process."""
        return f"ringline engine {self.name} rank {rank}"

    def close(self) -> None:  # noqa: B027  # most leave nothing
        """Clean up once the ranks have ended. Idempotent."""
