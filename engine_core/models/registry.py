"""Which model class runs which architecture, and how one is built. A new family is one new file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.errors import UnsupportedModelError
from engine_core.loading.dummy import DummyWeights
from engine_core.loading.stored import StoredWeights
from engine_core.loading.weights import ProgressCallback, Weights
from engine_core.models.base import CausalLM
from engine_core.models.decoder import DecoderForCausalLM
from engine_core.models.llama import LlamaForCausalLM
from engine_core.models.mistral import MistralForCausalLM
from engine_core.models.qwen2 import Qwen2ForCausalLM
from engine_core.models.qwen3 import Qwen3ForCausalLM
from engine_core.models.shape import is_redundant, tensor_shapes

if TYPE_CHECKING:  # it looks architectures up here
    from engine_core.loading.checkpoint import Checkpoint

ARCHITECTURES: dict[str, type[DecoderForCausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
}


def model_class(architecture: str) -> type[DecoderForCausalLM]:
    """The class for an architecture as config.json names it. Raises ``UnsupportedModelError`` listing the known."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; known are {known}")
    return ARCHITECTURES[architecture]


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
