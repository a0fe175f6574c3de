"""Builds a model from a checkpoint: first the parts, which declare their tensors, then the weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.torch_reference import TorchAttention
from engine_core.distributed.collectives import TensorCollectives
from engine_core.distributed.ranks import Rank
from engine_core.layers.part_factory import PartFactory
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.digest import Digest, TakenBytes, WeightsDigest
from engine_core.model_loader.dummy import DummyWeights
from engine_core.model_loader.expected import ExpectedTensors
from engine_core.model_loader.gguf.config import describe
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.model_loader.gguf.weights import GgufWeights
from engine_core.model_loader.multimodal import is_of_text, text_name
from engine_core.model_loader.safetensors_reader import SafetensorsWeights, find_tensors
from engine_core.models.language_model import LanguageModel
from engine_core.models.layered_model import LayeredModel
from engine_core.models.vision_model import VisionModel
from engine_core.ops.base import OpsBackend
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.base import QuantizationConfig
from engine_core.quantization.selector import outline_quantization
from engine_core.weights.source import ProgressCallback, Weights


def make_model(
    checkpoint: Checkpoint,
    attention: AttentionBackend,
    ops: OpsBackend,
    device: torch.device,
    quantization: QuantizationConfig | None = None,
    rank: Rank | None = None,
    collectives: TensorCollectives | None = None,
    *,
    enable_lora: bool = False,
) -> LanguageModel:
    """The model, or one ``rank``'s part, before any weights are read; it knows which tensors it needs.

    ``collectives`` connect the ranks of its stage; None: one rank, or nothing will be computed. ``enable_lora``: as in
    ``PartFactory``.
    """
    factory = PartFactory(
        ops, attention, checkpoint.dtype, device, quantization, rank or Rank(), collectives, enable_lora=enable_lora
    )
    model = checkpoint.choice.model(checkpoint.config, factory, checkpoint.spec.max_model_len)
    if (vision := checkpoint.vision) is not None and model.is_first_stage:
        # --quantization leaves towers as they are: they are small, and rounding costs them more
        of_vision = checkpoint.stored_quantization and quantization if vision.is_quantized else None
        model.add_vision(vision.model, vision.config, vision.preprocessor, vision.shape, of_vision)
    if checkpoint.pooler is not None:
        model.add_pooler(checkpoint.pooler, checkpoint.spec.architecture)
    return model


def model_outline(
    checkpoint: Checkpoint, rank: Rank | None = None, *, expands_experts: bool = False, enable_lora: bool = False
) -> LanguageModel:
    """The model, or a ``rank``'s part, on the meta device: it knows its tensors and their bytes.

    ``expands_experts`` is that of the backend that will compute; ``enable_lora`` as in ``PartFactory``.
    """
    ops = TorchBackend()
    ops.expands_experts = expands_experts
    quantization = outline_quantization(checkpoint.quantization, checkpoint.stored_quantization, checkpoint.group_size)
    device = torch.device("meta")
    return make_model(checkpoint, TorchAttention(), ops, device, quantization, rank, enable_lora=enable_lora)


def outline_parts(checkpoint: Checkpoint, *, quantized: bool) -> PartFactory:
    """Makes parts on the meta device beside those of the model; ``quantized`` as these are, if they are."""
    given = checkpoint.quantization, checkpoint.stored_quantization, checkpoint.group_size
    quantization = outline_quantization(*given) if quantized else None
    return PartFactory(TorchBackend(), TorchAttention(), checkpoint.dtype, torch.device("meta"), quantization)


def vision_outline(checkpoint: Checkpoint) -> VisionModel | None:
    """What encodes pictures, on the meta device: it can check them. None if the model takes none."""
    if (vision := checkpoint.vision) is None:
        return None
    factory = outline_parts(checkpoint, quantized=False)
    return vision.model(vision.config, vision.preprocessor, vision.shape, factory)


def load_weights(
    model: LanguageModel,
    checkpoint: Checkpoint,
    device: torch.device,
    on_progress: ProgressCallback | None = None,
    digest: Digest | None = None,
) -> None:
    """Load the weights of a model from ``make_model``, or of a rank's part, to ``device``.

    ``on_progress(done, total)`` is called with bytes. Each part packs and perhaps quantizes its own tensors, so a full
    copy of the stored weights never exists. What is read is added to ``digest``.
    Raises ``CheckpointError`` naming missing, unexpected or mis-shaped tensors and unreadable files.
    """
    weights: Weights
    if checkpoint.load_format == "dummy":
        weights = DummyWeights(model.tensors(), checkpoint.dtype, device, checkpoint.seed, on_progress)
    else:
        whole = model_outline(checkpoint) if model.is_part else model
        expected = _expected(whole, checkpoint)
        if model.is_part:  # checks that read tensors are left to the engine's process: hash_weights
            share = model.num_weights / whole.num_weights
            expected = replace(expected, repeats=lambda name: None, share=share)
        weights = _open_weights(checkpoint, expected, device, on_progress, digest)
    model.load(weights)


def further_weights(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    device: torch.device,
    on_progress: ProgressCallback | None = None,
) -> Weights:
    """The tensors of ``shapes``, some of which the checkpoint's model leaves out, to be loaded to ``device``.

    Raises as ``load_weights`` does.
    """
    if checkpoint.load_format == "dummy":
        return DummyWeights(shapes, checkpoint.dtype, device, checkpoint.seed, on_progress)

    def renamed(name: str) -> str:
        return _name_in_model(name, checkpoint)

    def is_left_out(name: str) -> bool:
        return renamed(name) not in shapes

    quantized = checkpoint.stored_quantization is not None
    expected = ExpectedTensors(shapes, renamed=renamed, is_left_out=is_left_out, quantized=quantized)
    return _open_weights(checkpoint, expected, device, on_progress, None)


def stored_names(checkpoint: Checkpoint) -> set[str]:
    """The names of all tensors in the checkpoint's safetensors or PyTorch files, those that its model leaves out, too.

    Raises ``CheckpointError``.
    """
    found = find_tensors(checkpoint.path, checkpoint.load_format)
    return {_name_in_model(name, checkpoint) for name in found}


def _name_in_model(name: str, checkpoint: Checkpoint) -> str:
    """The name that the model, without what is around it, has for a tensor's ``name`` in a file."""
    return checkpoint.choice.model.renamed(name if checkpoint.text_of is None else text_name(name))


def _expected(model: LanguageModel, checkpoint: Checkpoint) -> ExpectedTensors:
    stored, vision = checkpoint.stored_quantization, checkpoint.vision

    def of_vision(name: str) -> str | None:
        return None if vision is None else vision.model.renamed(name)

    def is_redundant(name: str) -> bool:
        return model.is_redundant(name) or (stored is not None and stored.is_redundant(name))

    shapes = model.tensors()

    def renamed(name: str) -> str:
        if (own := of_vision(name)) is not None:
            return own
        own = _name_in_model(name, checkpoint)
        if checkpoint.pooler is None or own in shapes or not isinstance(model, LayeredModel):
            return own
        # Of a model by itself, without a head, names lack the prefix that it has below one.
        return below if (below := f"{model.prefix}.{own}") in shapes else own

    def is_left_out(name: str) -> bool:
        if checkpoint.pooler is not None and name.startswith("lm_head.") and name not in shapes:
            return True
        return checkpoint.text_of is not None and not is_of_text(name) and of_vision(name) is None

    expected = ExpectedTensors(shapes, is_redundant, renamed, is_left_out, model.repeats)
    return expected if stored is None else replace(expected, must_be_zero=stored.must_be_zero, quantized=True)


def _open_weights(
    checkpoint: Checkpoint,
    expected: ExpectedTensors,
    device: torch.device,
    on_progress: ProgressCallback | None,
    digest: Digest | None,
) -> SafetensorsWeights | GgufWeights:
    path, dtype = checkpoint.path, checkpoint.dtype
    if not checkpoint.is_gguf:
        beside = checkpoint.beside
        return SafetensorsWeights(path, expected, dtype, device, on_progress, digest, checkpoint.load_format, beside)
    sources = describe(read_gguf(path)).sources
    return GgufWeights(path, sources, expected, dtype, device, on_progress, digest)


class WeightsOnDisk:
    """A checkpoint's tensors, for a process that loads none of them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raise as ``load_weights`` does."""
        model, self._digest = model_outline(checkpoint), WeightsDigest()
        self.num_parameters = model.num_weights
        self._checkpoint = checkpoint
        self._weights: SafetensorsWeights | GgufWeights | None = None
        if checkpoint.load_format != "dummy":
            expected = _expected(model, checkpoint)
            device = torch.device("cpu")
            self._weights = _open_weights(checkpoint, expected, device, None, self._digest)

    def digest(self, stop: threading.Event) -> str:
        """The same model digest as from loading all tensors; useless once ``stop`` is set."""
        if self._weights is not None:
            self._weights.hash_all(stop)
        return self._checkpoint.digest(self._digest)

    def first_other(self, taken: Sequence[TakenBytes]) -> str | None:
        """The first tensor whose bytes here differ from those a rank has ``taken``."""
        weights = self._weights
        return None if weights is None else next((each.name for each in taken if weights.differs(each)), None)
