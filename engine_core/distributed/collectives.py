"""How ranks exchange numbers: the interfaces that models and workers see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch


class TensorCollectives(ABC):
    """What the ranks of one stage do together. All of them make the same calls, in the same order."""

    rank: int
    size: int

    @abstractmethod
    def all_gather(
        self, x: torch.Tensor, widths: Sequence[int], *, groups: int = 1, writer: int | None = None
    ) -> torch.Tensor:
        """[T, Σ widths] of every rank's ``x`` [T, its width], side by side in the order of ranks.

        With ``groups``, rows are ``groups`` rows of their own each: [T, groups · Σ widths] of [T, groups · width].
        The result may be in memory that ranks share: whoever writes to it ends with SIGSEGV. It is valid until its
        tensor is gone. The rank ``writer`` alone may write to its result; then others cannot rely on theirs.
        Raises ``RankFailedError``.
        """

    @abstractmethod
    def gather_rows(
        self, x: torch.Tensor, ids: torch.Tensor, owned: Sequence[range], *, groups: int = 1
    ) -> torch.Tensor:
        """[T · groups, W]: each row from ``x`` [T · groups, W] of the rank whose range in ``owned`` has its id.

        ``ids``: [T · groups] int32, dense; a row whose id nobody owns is unspecified. The result and errors are as in
        ``all_gather``.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks. Raises ``RankFailedError``."""

    @abstractmethod
    def abort(self) -> None:
        """Let every rank's present and future calls raise. Callable from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Let go of memory and connections. Idempotent."""


class StageLinks(ABC):
    """The same rank's of the neighbouring stages. Tensors arrive in the order in which they are sent."""

    @abstractmethod
    def send(self, tensor: torch.Tensor) -> None:
        """To the next stage. Raises ``RankFailedError``."""

    @abstractmethod
    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """What the stage before sends, of that ``shape`` and ``dtype``. Raises ``RankFailedError``."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. Idempotent."""
