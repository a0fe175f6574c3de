"""A check, once weights are loaded, that rows of one sequence do not affect another's."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import ForwardContext
from engine_core.models.language_model import LanguageModel

_ROWS = 3
"""Tokens in each of two sequences; they fit one block."""
_TOLERANCE = 1e-3
"""Relative to the largest element. Between products of the same shape, rounding differs by far less."""


@torch.inference_mode()
def require_separate_rows(model: LanguageModel, attention: AttentionBackend, device: torch.device) -> None:
    """Raise ``UnsupportedModelError`` if the last sequence of a step changes with the first one's tokens and positions.

    Sequences' rows lie side by side in a step; a convolution, a shift or a norm over them would mix them.
    """
    longest = model.config.max_position_embeddings
    other_places = torch.arange(longest - _ROWS, longest) if longest > _ROWS else torch.zeros(_ROWS, dtype=torch.int64)
    ids = torch.arange(2 * _ROWS) * 31 % model.vocab_size
    other_ids = (ids + torch.tensor([7, 11, 13] + [0] * _ROWS)) % model.vocab_size
    hidden = _last_rows(model, attention, device, ids, torch.arange(_ROWS))
    others = _last_rows(model, attention, device, other_ids, other_places)
    if (hidden - others).abs().max() > _TOLERANCE * hidden.abs().max():
        raise UnsupportedModelError("its rows depend on each other, so sequences of one step would change each other")


def _last_rows(
    model: LanguageModel, attention: AttentionBackend, device: torch.device, ids: torch.Tensor, first: torch.Tensor
) -> torch.Tensor:
    """Final hidden states [_ROWS, H] of the second of two new sequences; ``first`` has the first one's positions."""
    groups = range(len(model.kv_cache_groups))
    block_size = 16
    caches = attention.allocate(model.kv_cache_spec(block_size), 2 * len(groups), device)
    metadata = [
        AttentionMetadata.of_sequences(
            [_ROWS, _ROWS],
            [_ROWS, _ROWS],
            torch.tensor([[2 * group], [2 * group + 1]], dtype=torch.int32),
            block_size,
            group,
        ).on(device)
        for group in groups
    ]
    positions = torch.cat([first, torch.arange(_ROWS)])
    return model.forward(ids.to(device), positions.to(device), ForwardContext(caches, metadata))[_ROWS:].float()
