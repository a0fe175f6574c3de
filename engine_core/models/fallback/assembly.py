"""Builds a transformers module with the engine's layers in it; weights and attention come later."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from engine_core.errors import UnsupportedModelError
from engine_core.layers.linear import ParallelLMHead
from engine_core.layers.part_factory import PartFactory
from engine_core.models.fallback.experts import (
    Experts,
    Router,
    is_experts,
    layout_of_experts,
    routers_of,
    shape_of_experts,
)
from engine_core.models.fallback.modules import (
    ACTIVATIONS,
    Activated,
    ChangedEmbedding,
    Embedding,
    GivenHidden,
    Head,
    Projection,
    RemainingTensors,
    replaced,
)
from engine_core.models.model_config import check_number_of_experts
from engine_core.weights.features import Features

_MIXING = (nn.modules.conv._ConvNd, nn.RNNBase, nn.modules.batchnorm._NormBase, nn.MultiheadAttention)
"""Modules whose rows depend on each other."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A transformers model whose linear layers and embeddings are the engine's."""

    module: PreTrainedModel
    head: Head | None
    """None: it is an encoder."""
    names: dict[str, str]
    """Names of tensors in a checkpoint, by the module's names."""
    shapes: dict[str, tuple[int, ...]]
    """By the module's names."""
    tied: dict[str, str]
    """The embedding's name in the checkpoint by that of the head's weight, if they are tied."""

    @property
    def decoder(self) -> nn.Module:
        """Everything but the head."""
        return self.module.base_model

    @property
    def decoder_path(self) -> str:
        """The decoder's path in the module; empty if that is it."""
        return "" if self.head is None else self.module.base_model_prefix

    def with_head_alone(self) -> nn.Module:
        """The module that computes logits from final hidden states [1, T, H], passed as ``inputs_embeds``."""
        return replaced(self.module, self.decoder_path.split("."), GivenHidden())


def assemble(config: PretrainedConfig, parts: PartFactory, implementation: str, *, encodes: bool = False) -> Assembly:
    """Build the model that ``config`` describes, with parts from ``parts``; its other weights are on the meta device.

    ``implementation`` names an attention function of transformers. ``encodes``: it is an encoder, without a head.
    Raises ``UnsupportedModelError`` if the engine's layers cannot replace the model's.
    """
    module = _build(config, parts.dtype, parts.device, implementation, AutoModel if encodes else AutoModelForCausalLM)
    if encodes and "pooler" in dict(module.named_children()):
        setattr(module, "pooler", None)  # noqa: B010  # what is made of hidden states comes behind
    for name, each in module.named_modules():
        if isinstance(each, _MIXING):
            raise UnsupportedModelError(
                f"{name} is a {type(each).__name__}, which mixes rows: expected layers that compute each row alone"
            )
    builder = _Builder(module, parts)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if not encodes:
        builder.put_in_embeddings_and_head()
    builder.put_in_layers()
    taken = {name for part in parts.parts for name in part.tensors()}
    if lost := sorted(set(builder.names.values()) ^ taken):
        raise UnsupportedModelError(f"{lost[0]} is not a weight of a layer that the engine can replace")
    return Assembly(module, builder.head, builder.names, shapes, builder.tied)


def _build(
    config: PretrainedConfig, dtype: torch.dtype, device: torch.device, implementation: str, factory: Any
) -> PreTrainedModel:
    """The module as ``factory`` makes it, which is transformers': parameters on the meta device, computed buffers on
    ``device``.
    """
    own = copy.deepcopy(config)
    own.use_cache = False
    with parameters_without_memory(), torch.device(device):
        module: PreTrainedModel = factory.from_config(
            own, dtype=dtype, attn_implementation=implementation, trust_remote_code=False
        )
    module.train(False)
    return module


@contextmanager
def parameters_without_memory(dtype: torch.dtype | None = None) -> Iterator[None]:
    """Move each parameter to the meta device when it is registered, before it is initialized; to ``dtype``, too."""

    def moved(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.to("meta", dtype), requires_grad=False)

    register: Any = register_module_parameter_registration_hook  # mistyped: hooks may return values
    handle = register(moved)
    try:
        yield
    finally:
        handle.remove()


def _names_in_checkpoint(module: PreTrainedModel, experts: Collection[str]) -> dict[str, str]:
    """The name that ``save_pretrained`` gives each tensor but those of ``experts``, by the module's name."""
    from transformers.core_model_loading import revert_weight_conversion

    own = {
        name: torch.empty_like(tensor, device="meta")
        for name, tensor in module.state_dict().items()
        if name.rpartition(".")[0] not in experts
    }
    saved = {id(tensor): name for name, tensor in revert_weight_conversion(module, dict(own)).items()}
    if lost := sorted(name for name, tensor in own.items() if id(tensor) not in saved):
        raise UnsupportedModelError(
            f"{lost[0]} is stored in another form than transformers computes with, which is not supported"
        )
    return {name: saved[id(tensor)] for name, tensor in own.items()}


class _Builder:
    """Replaces submodules one by one."""

    head: Head | None

    def __init__(self, module: PreTrainedModel, parts: PartFactory) -> None:
        self.head = None
        self._module = module
        self._parts = parts
        self._places = {id(each): name for name, each in module.named_modules()}
        self._mixtures = 0
        """Layers whose experts have been put in place."""
        self._experts = {name: each for name, each in module.named_modules() if is_experts(each)}
        blocks = [module.get_submodule(name.rpartition(".")[0]) for name in self._experts]
        self._routers = {self._places[id(router)] for block in blocks for router in routers_of(block)}
        self.names = _names_in_checkpoint(module, self._experts)
        self.tied: dict[str, str] = {}

    def put_in_embeddings_and_head(self) -> None:
        """Replace the head and the token embedding, which may be tied."""
        module: Any = self._module
        head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
        if type(head) is not nn.Linear or not isinstance(embedding, nn.Embedding):
            raise UnsupportedModelError(
                f"its head is a {type(head).__name__} and its embedding a {type(embedding).__name__}: expected Linear "
                "and Embedding"
            )
        head_name, embedding_name = self._places[id(head)], self._places[id(embedding)]
        tied, has_bias = self._is_tied(f"{head_name}.weight", f"{embedding_name}.weight"), self._has_bias(head_name)
        if tied:
            if has_bias:
                raise UnsupportedModelError(
                    "its head has a bias, which is not supported where its weight is tied to the embedding"
                )
            self.tied = {self.names.pop(f"{head_name}.weight"): self.names[f"{embedding_name}.weight"]}
        stored = self._stored(embedding_name if tied else head_name)
        part = self._parts.parallel_lm_head(stored, head.out_features, head.in_features, has_bias)
        self.head = Head(part)
        self._put(head_name, self.head)
        rows = self._embedding(embedding_name, embedding, part if tied else None)
        plain = type(embedding) is nn.Embedding
        self._put(embedding_name, rows if plain else ChangedEmbedding(rows, embedding))

    def _embedding(self, name: str, embedding: nn.Embedding, tied_to: ParallelLMHead | None = None) -> Embedding:
        """The replacement for ``embedding`` at ``name``."""
        count, width = embedding.num_embeddings, embedding.embedding_dim
        return Embedding(self._parts.vocab_parallel_embedding(self._stored(name), count, width, tied_to), width)

    def _is_tied(self, head: str, embedding: str) -> bool:
        """Whether the head's weight is the embedding's; no other weights may be tied."""
        ties: dict[str, str] = dict(self._module.all_tied_weights_keys)
        tied = ties.pop(head, None) == embedding
        if ties:
            tied_name, to_name = next(iter(ties.items()))
            raise UnsupportedModelError(
                f"{tied_name} is tied to {to_name}: only the head may be tied, and only to the embedding"
            )
        return tied

    def put_in_layers(self) -> None:
        """Replace everything else that has weights."""
        for name, each in list(self._module.named_modules()):
            if name in self._experts:
                self._put_in_experts(name, each)
            elif name.rpartition(".")[0] in self._experts:
                continue  # an activation that is no longer there
            elif type(each) is nn.Linear and name.rpartition(".")[0] not in self._routers:
                outputs = Features(1, each.out_features, fixed=True)
                part = self._parts.linear(self._stored(name), each.in_features, outputs, bias=self._has_bias(name))
                self._put(name, Projection(part))
            elif type(each) is nn.Embedding:
                self._put(name, self._embedding(name, each))
            elif (activation := ACTIVATIONS.get(type(each))) is not None:
                self._put(name, Activated(activation, self._parts.backend))
            elif names := self._own_names(name, each):
                self._parts.parts.append(RemainingTensors(each, names, self._exact(name, names)))
        for name in self._routers:
            self._put(name, Router(self._module.get_submodule(name), self._parts.backend))

    def _put_in_experts(self, name: str, experts: nn.Module) -> None:
        block = self._module.get_submodule(name.rpartition(".")[0])
        shape, tensors = shape_of_experts(name, experts, block), layout_of_experts(self._module, name)
        self._mixtures += 1
        check_number_of_experts(shape.num_experts, self._mixtures)
        part = self._parts.routed_experts(shape, tensors)
        self.names |= {f"{name}.{stored}": stored for stored in part.tensors()}
        self._put(name, Experts(part, self._parts.backend.padded(shape.hidden_size)))

    def _exact(self, place: str, names: Mapping[str, str]) -> set[str]:
        """The checkpoint's names of those tensors at ``place`` that transformers keeps in float32."""
        patterns = getattr(self._module, "_keep_in_fp32_modules_strict", None) or ()
        return {stored for own, stored in names.items() if any(re.search(each, f"{place}.{own}") for each in patterns)}

    def _own_names(self, place: str, module: nn.Module) -> dict[str, str]:
        """The checkpoint's names of the tensors directly in ``module`` at ``place``, by the module's names."""
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        names = {name: self.names.get(f"{place}.{name}" if place else name) for name, _ in own}
        return {name: stored for name, stored in names.items() if stored is not None}

    def _has_bias(self, name: str) -> bool:
        return f"{name}.bias" in self.names

    def _stored(self, name: str) -> str:
        """The checkpoint's name of the module at ``name``."""
        return self.names[f"{name}.weight"].removesuffix(".weight")

    def _put(self, name: str, new: nn.Module) -> None:
        self._module.set_submodule(name, new)
