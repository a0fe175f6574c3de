"""Towers of random weights as transformers makes them, and the engine's with the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from engine_core.attention.torch_reference import TorchAttention
from engine_core.layers.part_factory import PartFactory
from engine_core.media import Picture
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.ops.base import OpsBackend
from engine_core.ops.native import NativeBackend
from engine_core.ops.selector import choose_ops
from engine_core.vision.transformers_tower import build_module, put_in_parts
from engine_core.weights.source import TensorRows
from tests.engine_core.models.multimodal_models import as_published

CPU = torch.device("cpu")


class StateWeights:
    """Weights from a mapping of names to tensors, in ``dtype``."""

    make_quantized = None

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.left = dict(tensors)
        """Those that nobody has taken."""
        self._tensors = tensors

    def take(self, *tensors: str | TensorRows) -> torch.Tensor:
        taken = []
        for each in tensors:
            name = each if isinstance(each, str) else each.name
            self.left.pop(name, None)
            tensor = self._tensors[name].to(self.dtype)
            taken.append(tensor if isinstance(each, str) else tensor[each.rows.start : each.rows.stop])
        return torch.cat(taken) if len(taken) > 1 else taken[0]

    def take_table(self, tensor: str | TensorRows) -> torch.Tensor:
        return self.take(tensor)

    def take_float32(self, name: str) -> torch.Tensor:
        self.left.pop(name, None)
        return self._tensors[name].float().clone()


def weights_of(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> Any:
    """As parts take them."""
    return StateWeights(tensors, dtype)


def randomize(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights, biases and norms included, so that leaving one out shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.2, generator=generator).add_(1.0 if parameter.ndim == 1 else 0.0)
    return module.float().eval().requires_grad_(False)


def factory(dtype: torch.dtype = torch.float32) -> PartFactory:
    """With the layers that an engine would choose on CPU."""
    ops: OpsBackend = choose_ops(64, dtype)[0]
    assert isinstance(ops, NativeBackend)
    return PartFactory(ops, TorchAttention(), dtype, CPU)


def engines(make: Callable[[], nn.Module], whole: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """What ``make`` makes, with the engine's layers and the weights of ``whole``."""
    parts = factory(dtype)
    module = build_module(make, parts)
    put_in_parts(module, parts, "tower.".__add__)
    weights = StateWeights({f"tower.{name}": tensor for name, tensor in whole.state_dict().items()}, dtype)
    expected = {name: tuple(tensor.shape) for name, tensor in weights.left.items()}
    assert {name: shape for part in parts.parts for name, shape in part.tensors().items()} == expected
    given: Any = weights
    for part in parts.parts:
        part.load(given)
    assert not weights.left
    return module


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same_with_any_threads(vision: VisionModel, picture: Picture, counts: Sequence[int] = (1, 2, 3)) -> Encoded:
    """What is encoded, after a check that its bits are the same with each number of threads."""
    found = []
    for count in counts:
        with threads(count):
            found.append(vision.encode(picture))
    for each in found[1:]:
        assert torch.equal(each.embeddings, found[0].embeddings)
        if each.deepstack is not None and found[0].deepstack is not None:
            assert torch.equal(each.deepstack, found[0].deepstack)
    return found[0]


def save_whole(
    model: PreTrainedModel,
    directory: Path,
    fields: Mapping[str, Any],
    preprocessor: Mapping[str, Any],
    renamed: Callable[[str], str] = lambda name: name,
) -> Path:
    """A checkpoint of a whole multimodal model; ``renamed``: its tensors' names in the file.

    ``fields`` go into config.json; ``preprocessor`` is preprocessor_config.json.
    """
    tensors = {renamed(name): tensor.clone().contiguous() for name, tensor in as_published(model).items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(model.config.to_dict() | dict(fields)))
    (directory / "preprocessor_config.json").write_text(json.dumps(dict(preprocessor)))
    return directory
