"""How a rank connects to the others of its engine."""

from __future__ import annotations

from engine_core.distributed.collectives import TensorCollectives
from engine_core.distributed.ranks import Rank
from engine_core.distributed.rendezvous import Rendezvous
from engine_core.platforms.base import Platform


def join_stage(rendezvous: Rendezvous, rank: Rank, device: Platform, timeout: float) -> TensorCollectives | None:
    """What the ranks of this stage do together; None for a single one. Raises ``RankFailedError``.

    ``timeout``: seconds for the others to come.
    """
    if rank.tp_size == 1:
        return None
    if rendezvous.tensor_transport == "shm":
        from engine_core.distributed.shm import ShmCollectives
        from engine_core.kernels.library import load_kernels

        key = f"{rendezvous.key}-{rank.pp}"
        return ShmCollectives.join(key, rank.tp, rank.tp_size, timeout, load_kernels())
    raise NotImplementedError(rendezvous.tensor_transport)
