"""Read the checkpoint of an EAGLE-3 head, in the form of its authors or in that of the library ``speculators``.

Neither says for which model it is: what it says of the target's sizes is compared with the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.layers.part_factory import PartFactory
from engine_core.model_loader.checkpoint import read_by_transformers
from engine_core.model_loader.expected import ExpectedTensors
from engine_core.model_loader.json_files import read_object
from engine_core.model_loader.location import find_path
from engine_core.model_loader.safetensors_reader import SafetensorsWeights, find_tensors
from engine_core.models.eagle3 import Eagle3Config, Eagle3Head, Embed
from engine_core.models.model_config import ModelShape
from engine_core.weights.source import ProgressCallback, TensorRows

_EMBEDDING = "embed_tokens.weight"
_AT_ONCE = 4096
"""Rows of an embedding that are compared at a time."""
_NOT_SUPPORTED = {"norm_before_fc": False, "fc_norm": False, "norm_output": False, "use_aux_hidden_state": True}
"""Variants of the head, and the value that each must have if it is given."""


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """A head whose configuration is read; its weights are still on disk."""

    path: Path
    config: Eagle3Config
    taps: tuple[int, ...]
    """The target's layers whose inputs it takes."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of its tensors."""

    @property
    def has_embedding(self) -> bool:
        return _EMBEDDING in self.shapes


def open_head(model: str, revision: str | None, options: ModelConfig, target: ModelShape) -> HeadCheckpoint:
    """Find the head that ``model`` names, as ``options`` of the target say, and check that it fits the ``target``.

    Raises ``CheckpointError``, ``UnsupportedModelError``.
    """
    path = find_path(model, revision, options.download_dir, weights=True)
    if path.is_file():
        raise CheckpointError(f"{path} is a file: expected a directory with config.json and model.safetensors")
    raw = _flat(read_object(path / "config.json"))
    for name, supported in _NOT_SUPPORTED.items():
        if raw.get(name, supported) is not supported:
            raise CheckpointError(f"{path}: {name}={raw[name]!r} is not supported: expected {supported}")
    if "draft_vocab_size" not in raw:
        raise CheckpointError(f"{path / 'config.json'} has no draft_vocab_size: expected that of an EAGLE-3 head")
    if (layers := raw.setdefault("num_hidden_layers", 1)) != 1:
        raise CheckpointError(f"{path}: num_hidden_layers={layers!r} is not supported: expected a head of 1 layer")
    if raw["draft_vocab_size"] is None:
        raw["draft_vocab_size"] = raw.get("vocab_size")
    taps = _taps(path, raw, target.num_layers)
    raw |= {"num_taps": len(taps), "norm_before_residual": raw.get("norm_before_residual", False)}
    if raw.get("target_hidden_size") is None:
        raw["target_hidden_size"] = raw.get("hidden_size")
    fields = {**raw, "model_type": "llama", "tie_word_embeddings": False}
    config = Eagle3Head.read_config(read_by_transformers(path, fields))
    for name, own, wanted in (
        ("hidden_size", config.target_hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.vocab_size),
    ):
        if own != wanted:
            raise CheckpointError(f"{path} is for a model with {name}={own}, but this one has {name}={wanted}")
    shapes = {Eagle3Head.renamed(name): tensor.shape for name, tensor in find_tensors(path).items()}
    if _EMBEDDING not in shapes and config.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{path} has no {_EMBEDDING}, and the model's does not fit: its hidden_size is {target.hidden_size}, that "
            f"of the head {config.hidden_size}"
        )
    if "d2t" not in shapes and config.draft_vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{path} has no d2t, which says what tokens its draft_vocab_size={config.draft_vocab_size} are: without it "
            f"that must be vocab_size={config.vocab_size}"
        )
    return HeadCheckpoint(path, config, taps, shapes)


def load_head(
    checkpoint: HeadCheckpoint,
    parts: PartFactory,
    max_model_len: int,
    embed: Embed | None,
    on_progress: ProgressCallback,
) -> Eagle3Head:
    """Load the head by ``parts``, for sequences of the target's ``max_model_len``.

    ``embed`` is the target's embedding, which is used where the head has none, or the same; None: it must be the
    head's. Raises ``CheckpointError``.
    """
    if checkpoint.has_embedding and embed is not None and not _is_same_embedding(checkpoint, parts, embed):
        embed = None
    head = make_head(checkpoint, parts, max_model_len, embed)
    head.load(_weights(checkpoint, head, parts, on_progress))
    return head


def make_head(
    checkpoint: HeadCheckpoint, parts: PartFactory, max_model_len: int, embed: Embed | None = None
) -> Eagle3Head:
    """The head before any weights are read; it knows which tensors it needs. ``embed`` as for ``Eagle3Head``."""
    return Eagle3Head(checkpoint.config, parts, max_model_len, embed=embed, maps_tokens="d2t" in checkpoint.shapes)


def _weights(
    checkpoint: HeadCheckpoint, head: Eagle3Head, parts: PartFactory, on_progress: ProgressCallback | None
) -> SafetensorsWeights:
    expected = ExpectedTensors(head.tensors(), head.is_redundant, head.renamed, quantized=True)  # d2t has integers
    return SafetensorsWeights(checkpoint.path, expected, parts.dtype, parts.device, on_progress)


def _is_same_embedding(checkpoint: HeadCheckpoint, parts: PartFactory, embed: Embed) -> bool:
    """Whether the head's embedding repeats the target's."""
    config, outline = checkpoint.config, PartFactory(parts.backend, parts.attention_backend, parts.dtype, parts.device)
    if checkpoint.shapes[_EMBEDDING] != (config.vocab_size, config.target_hidden_size):
        return False
    weights = _weights(checkpoint, make_head(checkpoint, outline, 1), parts, None)
    for first in range(0, config.vocab_size, _AT_ONCE):
        rows = range(first, min(first + _AT_ONCE, config.vocab_size))
        own = weights.take(TensorRows(_EMBEDDING, config.vocab_size, rows))
        given = embed(torch.arange(rows.start, rows.stop, device=parts.device))
        if not torch.equal(own, given[:, : config.hidden_size]):
            return False
    return True


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``raw``, a head's config.json, with the fields that some publishers keep in an object of their own."""
    nested = [raw.get(name) for name in ("transformer_layer_config", "eagle_config")]
    flat: dict[str, Any] = {}
    for fields in [*nested, raw]:
        flat |= fields if isinstance(fields, dict) else {}
    return flat


def _taps(path: Path, raw: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs the head takes: those it names, by default an early, a middle and a late one.

    Heads that name layer 1 first count outputs of layers (https://github.com/sgl-project/sglang/pull/25454).
    """
    name = "eagle_aux_hidden_state_layer_ids"
    given = raw.get(name)
    if given is None:
        given = [2, num_layers // 2, num_layers - 3]
    if not isinstance(given, list) or not given or not all(type(layer) is int for layer in given):
        raise CheckpointError(f"{path}: {name}={given!r} is not usable: expected a list of layers")
    taps = [layer + 1 for layer in given] if given[0] == 1 else given
    if not all(0 <= layer < num_layers for layer in taps) or len(taps) > num_layers:
        raise CheckpointError(
            f"{path} takes the inputs of the layers {', '.join(map(str, taps))}, but this model has {num_layers} layers"
        )
    return tuple(taps)
