"""From a checkpoint to a model with its weights."""

from __future__ import annotations

import math

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.layers.base import LayerFactory
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.digest import WeightsDigest
from engine_core.model_loader.dummy import DummyWeights
from engine_core.model_loader.safetensors_reader import SafetensorsWeights
from engine_core.model_loader.weights import ProgressCallback, Weights
from engine_core.models.architecture import is_redundant, tensor_shapes
from engine_core.models.base import CausalLM
from engine_core.models.registry import model_class
from engine_core.quantization.int8 import int8_bytes


def expected_weight_bytes(checkpoint: Checkpoint) -> int:
    """Memory that the weights will take, before any is read; what packing them for the processor adds is left out."""
    shape, itemsize = checkpoint.shape, checkpoint.dtype.itemsize
    total = 0
    for name, size in tensor_shapes(shape).items():
        looked_up = name == "model.embed_tokens.weight" and not shape.tie_word_embeddings
        if checkpoint.quantization is None or len(size) == 1 or looked_up:
            total += math.prod(size) * itemsize
        else:
            total += int8_bytes(*size)
    return total


def build_model(
    checkpoint: Checkpoint,
    attention: AttentionBackend,
    layers: LayerFactory,
    device: torch.device,
    on_progress: ProgressCallback | None = None,
    digest: WeightsDigest | None = None,
) -> CausalLM:
    """Load the checkpoint's weights into a model on ``device``.

    ``on_progress(done, total)`` is called with bytes as they are loaded: pass
    ``lambda done, total: progress.advance(stage, done, total)``.
    ``layers`` are made one by one, packed and perhaps quantized: a copy of the weights as they are stored never
    exists. What is read is added to ``digest``.
    Raises ``CheckpointError`` naming missing, unexpected or mis-shaped tensors and unreadable files.
    """
    shape = checkpoint.shape
    shapes = tensor_shapes(shape)
    weights: Weights
    if checkpoint.load_format == "dummy":
        weights = DummyWeights(shapes, checkpoint.dtype, device, checkpoint.seed, on_progress)
    else:
        weights = SafetensorsWeights(
            checkpoint.path,
            shapes,
            lambda name: is_redundant(name, shape),
            checkpoint.dtype,
            device,
            on_progress,
            digest,
        )
    model = model_class(checkpoint.spec.architecture)
    return model(shape, weights, attention, checkpoint.dtype, device, layers, checkpoint.spec.max_model_len)
