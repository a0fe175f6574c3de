"""Finds the part of a model that first puts out a NaN, for an error message."""

from __future__ import annotations

import numpy as np
import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.forward_context import ForwardContext
from engine_core.kv_cache_interface import NO_STATE
from engine_core.models.language_model import LanguageModel, StagedModel
from engine_core.pooling.params import PoolingParams
from engine_core.pooling.pooler import Pooler
from engine_core.states.base import StateMetadata
from engine_core.worker.caches import allocate_caches
from engine_core.worker.input_batch import BatchLimits


@torch.inference_mode()
def first_unsound_part(
    model: LanguageModel, attention: AttentionBackend, limits: BatchLimits, device: torch.device
) -> str | None:
    """The first part of this stage that puts out a NaN for the warm-up's prompt; None if none does.

    Ranks that share layers call it at the same time, and get the same result. A stage after the first tests itself
    with made-up inputs.
    """
    tokens = torch.tensor(limits.warm_up_tokens(model.vocab_size), device=device)
    positions = torch.arange(len(tokens), device=device)

    def hidden_states(count: int) -> torch.Tensor:
        """After ``count`` of this stage's layers, and the norm."""
        return _hidden_states(model.with_layers(layers[:count]), attention, limits.block_size, tokens, positions)

    layers = model.stage_layers
    hidden = hidden_states(len(layers))
    if not _has_nan(hidden):
        if model.pooler is not None:
            return None if _pools_numbers(model.pooler, hidden) else "what makes results of hidden states"
        is_in_head = model.has_head and _has_nan(model.compute_logits(hidden))
        return "the head" if is_in_head else None
    if isinstance(model, StagedModel) and _has_nan(model.first_input(tokens, positions).hidden):
        return "the embedding"
    # Bisect: a NaN stays in all layers after the one where it began.
    sound, unsound = 0, len(layers)
    while unsound - sound > 1:
        middle = (sound + unsound) // 2
        if _has_nan(hidden_states(middle)):
            unsound = middle
        else:
            sound = middle
    of_all = f"layer {layers[sound]} of 0 … {model.config.num_layers - 1}"
    return f"{of_all}, or in the norm before the head" if model.has_head and sound == 0 else of_all


def _pools_numbers(pooler: Pooler, hidden: torch.Tensor) -> bool:
    rows = hidden.float().cpu().numpy()
    return all(np.isfinite(pooler.results(rows, PoolingParams(task))).all() for task in pooler.config.facts.tasks)


def _has_nan(x: torch.Tensor) -> bool:
    return bool(x.isnan().any())


def _hidden_states(
    model: LanguageModel, attention: AttentionBackend, block_size: int, tokens: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Hidden states of a single sequence of ``tokens``, on new caches."""
    groups, blocks = len(model.kv_cache_groups), -(-len(tokens) // block_size)
    caches = allocate_caches(model, attention, block_size, tokens.device, num_blocks=groups * blocks)
    tables = torch.arange(groups * blocks, dtype=torch.int32).view(groups, 1, blocks)
    metadata = [
        AttentionMetadata.of_sequences([len(tokens)], [len(tokens)], table, block_size, group)
        for group, table in enumerate(tables)
    ]
    if metadata:
        attention.plan(metadata[0])
    states = StateMetadata.of_sequences([len(tokens)], [NO_STATE], [0]) if caches.states else None
    context = ForwardContext(
        caches.kv,
        [each.on(tokens.device) for each in metadata],
        states=caches.states,
        state_metadata=None if states is None else states.on(tokens.device),
    )
    return model.forward(tokens, positions, context)
