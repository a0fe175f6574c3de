"""What starts the processes of ranks, and knows where they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import Rank
from engine_core.executor.ranks.process import RankProcess


class RankLauncher(ABC):
    """Starts the ranks of one engine."""

    silence: ClassVar[float] = 0.7
    """Seconds without a beat after which a rank counts as lost."""
    host = "127.0.0.1"
    """Known after ``launch``: the address of this host that every rank reaches."""

    def __init__(self, config: EngineConfig, name: str) -> None:
        """``name``: of the engine, for the titles of its ranks."""
        self.config = config
        self.name = name

    @abstractmethod
    def launch(self) -> Sequence[RankProcess]:
        """Start the processes, by rank. What it raises must leave none behind. Raises ``EngineError``."""

    def config_of(self, rank: Rank) -> EngineConfig:
        """What the worker of a rank is made with."""
        return self.config

    def title(self, rank: Rank) -> str:
        """Of the process of a rank."""
        return f"ringline engine {self.name} rank {rank}"

    def close(self) -> None:  # noqa: B027  # most leave nothing
        """End what is left once the ranks have ended. Idempotent."""
