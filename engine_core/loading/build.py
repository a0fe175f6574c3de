"""From a checkpoint to a model with its weights."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.loading.checkpoint import Checkpoint
from engine_core.loading.dummy import DummyWeights
from engine_core.loading.stored import StoredWeights
from engine_core.loading.weights import ProgressCallback, Weights
from engine_core.models.base import CausalLM
from engine_core.models.registry import model_class
from engine_core.models.shape import is_redundant, tensor_shapes


def build_model(
    checkpoint: Checkpoint,
    attention: AttentionBackend,
    device: torch.device,
    on_progress: ProgressCallback | None = None,
) -> CausalLM:
    """Load the checkpoint's weights into a model on ``device``.

    ``on_progress(done, total)`` is called with bytes as they are loaded: pass
    ``lambda done, total: progress.advance(stage, done, total)``.
    Raises ``CheckpointError`` naming missing, unexpected or mis-shaped tensors and unreadable files.
    """
    shape = checkpoint.shape
    shapes = tensor_shapes(shape)
    weights: Weights
    if checkpoint.load_format == "dummy":
        weights = DummyWeights(shapes, checkpoint.dtype, device, checkpoint.seed, on_progress)
    else:
        weights = StoredWeights(
            checkpoint.path, shapes, lambda name: is_redundant(name, shape), checkpoint.dtype, device, on_progress
        )
    return model_class(checkpoint.spec.architecture)(shape, weights, attention, checkpoint.dtype, device)
