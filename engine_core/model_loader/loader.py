"""From a checkpoint to a model with its weights: first the parts, which say what they need, then their tensors."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.torch_reference import TorchAttention
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.weights import ProgressCallback, Weights
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.digest import WeightsDigest
from engine_core.model_loader.dummy import DummyWeights
from engine_core.model_loader.safetensors_reader import ExpectedTensors, SafetensorsWeights
from engine_core.models.language_model import LanguageModel
from engine_core.ops.base import OpsBackend
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.base import QuantMethod
from engine_core.quantization.int8 import Int8


def make_model(
    checkpoint: Checkpoint,
    attention: AttentionBackend,
    ops: OpsBackend,
    device: torch.device,
    quant_method: QuantMethod | None = None,
) -> LanguageModel:
    """The model without weights: what it needs is known, and nothing was read."""
    factory = PartFactory(ops, attention, checkpoint.dtype, device, quant_method)
    return checkpoint.choice.model(checkpoint.config, factory, checkpoint.spec.max_model_len)


def model_outline(checkpoint: Checkpoint) -> LanguageModel:
    """The model without weights and without a device, for arithmetic: its tensors and their bytes are known."""
    quant_method = None if checkpoint.quantization is None else Int8(None)
    return make_model(checkpoint, TorchAttention(), TorchBackend(), torch.device("meta"), quant_method)


def load_weights(
    model: LanguageModel,
    checkpoint: Checkpoint,
    device: torch.device,
    on_progress: ProgressCallback | None = None,
    digest: WeightsDigest | None = None,
) -> None:
    """Give a model of ``make_model`` its weights, on ``device``.

    ``on_progress(done, total)`` is called with bytes as they are loaded. Each part packs and perhaps quantizes what it
    takes, so a copy of all weights as they are stored never exists. What is read is added to ``digest``.
    Raises ``CheckpointError`` naming missing, unexpected or mis-shaped tensors and unreadable files.
    """
    shapes = model.tensors()
    weights: Weights
    if checkpoint.load_format == "dummy":
        weights = DummyWeights(shapes, checkpoint.dtype, device, checkpoint.seed, on_progress)
    else:
        expected = ExpectedTensors(shapes, model.is_redundant, model.renamed, model.repeats)
        weights = SafetensorsWeights(checkpoint.path, expected, checkpoint.dtype, device, on_progress, digest)
    model.load(weights)
