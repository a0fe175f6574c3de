"""How ranks exchange tensors: the interfaces that models and workers see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch


class TensorCollectives(ABC):
    """Collective operations of the ranks of one stage. All ranks make the same calls in the same order."""

    rank: int
    size: int

    @abstractmethod
    def all_gather(
        self, x: torch.Tensor, widths: Sequence[int], *, groups: int = 1, writer: int | None = None
    ) -> torch.Tensor:
        """[T, Σ widths]: every rank's ``x`` [T, its width], side by side in rank order.

        With ``groups``, a row is ``groups`` rows, gathered separately: [T, groups · width] → [T, groups · Σ widths].
        The result may be in shared memory, valid while its tensor lives; writing to it ends the process with SIGSEGV.
        Only the rank ``writer`` may write to its result; other ranks cannot rely on theirs then.
        Raises ``RankFailedError``.
        """

    @abstractmethod
    def gather_rows(
        self, x: torch.Tensor, ids: torch.Tensor, owned: Sequence[range], *, groups: int = 1
    ) -> torch.Tensor:
        """[T · groups, W]: each row from ``x`` [T · groups, W] of the rank whose range in ``owned`` has the row's id.

        ``ids``: [T · groups] int32, dense; a row whose id no rank owns is unspecified. Result and errors: as in
        ``all_gather``.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks. Raises ``RankFailedError``."""

    @abstractmethod
    def abort(self) -> None:
        """Make every rank's present and future calls raise. Callable from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Release memory and connections. Idempotent."""


class StageLinks(ABC):
    """Links to the same rank of the neighbouring stages. Tensors arrive in the order sent."""

    @abstractmethod
    def send(self, tensor: torch.Tensor) -> None:
        """Send to the next stage. Raises ``RankFailedError``."""

    @abstractmethod
    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Receive the previous stage's next tensor. Raises ``RankFailedError``."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Idempotent."""
