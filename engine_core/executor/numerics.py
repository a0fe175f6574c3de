"""The numerics digest: equal for workers that compute the same request to the same bits."""

from __future__ import annotations

import numpy as np
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.distributed.ranks import Rank
from engine_core.model_loader.digest import digest_of
from engine_core.models.language_model import LanguageModel
from engine_core.platforms.base import Platform


def numerics_of(dtype: torch.dtype, device: Platform, model: LanguageModel, spec: KVCacheSpec, rank: Rank) -> str:
    """32 hex digits, of all but the weights.

    Of the number type, what the device, the attention backend and the operations say of their numerics, and the builds
    of torch and numpy (which samples on CPU). The batch, the number of threads and, where operations say so, that of
    ranks are not in it: they do not change a result.
    """
    of_parts = [*device.numerics(), *model.numerics, device.attention.numerics(spec), device.ops.numerics()]
    if rank.tp_size > 1 and not device.ops.rank_invariant:
        of_parts.append(f"{rank.tp_size} ranks")
    builds = torch.__version__, torch.__config__.show(), np.__version__
    return digest_of(str(dtype), *of_parts, *builds)
