"""An executor with a process of this host for each rank (like vLLM's ``MultiprocExecutor``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import ranks_on_one_host
from engine_core.errors import ConfigError
from engine_core.executor.local_rank import LocalRank
from engine_core.executor.rank_process import RankProcess
from engine_core.executor.remote import RemoteExecutor
from engine_core.platforms.host_memory import usable_cpus
from engine_core.platforms.selector import is_for_cpu


class MultiprocExecutor(RemoteExecutor):
    """Starts ``engine_core.executor.worker_main`` for each rank."""

    def start_ranks(self) -> Sequence[RankProcess]:
        require_room(self._config)
        started: list[LocalRank] = []
        try:
            for rank in ranks_on_one_host(self._config.parallel):
                started.append(LocalRank(rank, self.title(rank)))  # noqa: PERF401  # one that fails leaves the others
        except BaseException:
            for each in started:
                each.kill()
                each.wait(1.0)
                each.close()
            raise
        return started


def require_room(config: EngineConfig) -> None:
    """Raise ``ConfigError`` for more ranks than there are processors, or GPUs, for them."""
    parallel = config.parallel
    # The one that has been raised is to be lowered.
    flag = "tensor_parallel_size" if parallel.tensor_parallel_size > 1 else "pipeline_parallel_size"
    size = getattr(parallel, flag)
    named = f"{parallel.world_size} ranks are tensor_parallel_size × pipeline_parallel_size"
    if not is_for_cpu(config.device):
        gpus = torch.cuda.device_count()
        if 0 < gpus < parallel.world_size:  # without any, the device is what cannot be had, and a worker says so
            accepted = f"at most one rank for each of {gpus} GPUs; {named}"
            raise ConfigError(flag, size, accepted)
    elif config.device.num_threads is None and parallel.world_size > usable_cpus():
        accepted = (
            f"at most one rank for each of {usable_cpus()} usable processors, or --num-threads 1, with which ranks may "
            f"share them; {named}"
        )
        raise ConfigError(flag, size, accepted)
