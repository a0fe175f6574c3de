"""Which model class runs which architecture, and how one is built. A new family is one new file and a line here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.loading.checkpoint import Checkpoint
from engine_core.models.base import CausalLM


def build_model(
    checkpoint: Checkpoint,
    attention: AttentionBackend,
    device: torch.device,
    on_progress: Callable[[int, int], None] | None = None,
) -> CausalLM:
    """Load the checkpoint's weights into a model on ``device``.

    ``on_progress(done, total)`` is called with bytes as they are loaded: pass
    ``lambda done, total: progress.advance(stage, done, total)``.
    Raises ``CheckpointError`` naming missing, unexpected or mis-shaped tensors and unreadable files.
    """
    raise NotImplementedError
