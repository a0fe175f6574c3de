"""The numerics digest: equal for workers that compute the same request to the same bits."""

from __future__ import annotations

import numpy as np
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.distributed.ranks import Rank
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.digest import digest_of
from engine_core.models.language_model import LanguageModel
from engine_core.platforms.base import Platform


def numerics_of(checkpoint: Checkpoint, device: Platform, model: LanguageModel, spec: KVCacheSpec, rank: Rank) -> str:
    """32 hex digits, for everything but the weights.

    Covers the number type, the numerics of the device, the model, the attention backend and the operations, and the
    builds of torch and numpy (which samples on CPU). Excluded, as they do not change a result: the batch, the number
    of threads and, if the operations are rank-invariant, the number of ranks.
    """
    of_parts = [*device.numerics(), *model.numerics, device.attention.numerics(spec), device.ops.numerics()]
    if checkpoint.vision is not None:  # stages without its tower are of the same engine
        of_parts.extend(checkpoint.vision.model.numerics)
    if rank.tp_size > 1 and not device.ops.rank_invariant:
        of_parts.append(f"{rank.tp_size} ranks")
    if model.config.keeps_states:
        of_parts.append(f"states in float32, the inputs of convolutions in {checkpoint.dtype}")
    builds = torch.__version__, torch.__config__.show(), np.__version__
    return digest_of(str(checkpoint.dtype), *of_parts, *builds)
