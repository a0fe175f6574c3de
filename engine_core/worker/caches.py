"""The memory of a model's layers that lasts from step to step: KV caches and states."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.forward_context import Caches
from engine_core.models.language_model import LanguageModel


def allocate_caches(
    model: LanguageModel,
    attention: AttentionBackend,
    block_size: int,
    device: torch.device,
    *,
    num_blocks: int = 1,
    num_states: int = 1,
) -> Caches:
    """Unspecified until written. Raises ``RuntimeError`` if the system refuses the memory."""
    states = model.state_cache_spec
    return Caches(
        attention.allocate(model.kv_cache_spec(block_size), num_blocks, device),
        [] if states is None else states.allocate(num_states, device),
    )


def of_layer(caches: Caches, model: LanguageModel, place: int) -> Caches:
    """The caches that the layer at ``place`` of ``model`` uses, for a copy with that layer alone."""
    kv, state = model.cache_of_layers[place], model.state_of_layers[place]
    return Caches([] if kv is None else [caches.kv[kv]], [] if state is None else [caches.states[state]])
