"""Which experts a model of transformers chooses, recorded, and forced upon others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.models.llama4.modeling_llama4 import Llama4Router

from engine_core.models.fallback.model import TransformersForCausalLM
from engine_core.models.language_model import LanguageModel

Routing = list[tuple[torch.Tensor, torch.Tensor]]
"""Of each layer that has experts: ids [T, k] and weights [T, k] float32."""

_ROUTERS = ("Router", "MoEV1Gate")
"""Ends of the names of their classes."""


def routers_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """In the order of layers."""
    return [module for module in model.modules() if type(module).__name__.endswith(_ROUTERS)]


@contextmanager
def recorded_routing(model: PreTrainedModel) -> Iterator[Routing]:
    """What the routers of ``model`` choose meanwhile, once it has run."""
    routing: Routing = []

    def record(module: torch.nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, Llama4Router):
            weights, ids = output[0].topk(module.top_k)
        else:
            _, weights, ids = output
        routing.append((ids, weights.float()))

    hooks = [router.register_forward_hook(record) for router in routers_of(model)]
    yield routing
    for hook in hooks:
        hook.remove()


@contextmanager
def forced_routing(model: PreTrainedModel, routing: Routing) -> Iterator[None]:
    """The routers of ``model`` choose as ``routing`` says."""
    hooks = _force(model, routing)
    yield
    for hook in hooks:
        hook.remove()


def _force(model: PreTrainedModel, routing: Routing) -> list[RemovableHandle]:
    """Hooks that make the routers of ``model`` choose so."""
    hooks = []
    for router, (ids, weights) in zip(routers_of(model), routing, strict=True):

        def force(module: Any, args: Any, output: Any, ids: Any = ids, weights: Any = weights) -> Any:
            if isinstance(module, Llama4Router):
                scores, logits = output
                return torch.zeros_like(scores).scatter_(1, ids, weights.to(scores.dtype)), logits
            return output[0], weights.to(output[1].dtype), ids

        hooks.append(router.register_forward_hook(force))
    return hooks


def force_routing(model: LanguageModel, routing: Routing) -> None:
    """The routers of one of our models choose as ``routing`` says, in one step of all rows."""
    if not routing:
        return
    if isinstance(model, TransformersForCausalLM):
        _force(model._assembly.module, routing)
        return
    layers, factor = iter(routing), getattr(model.config, "residual_scale", 1.0)  # Granite's routers apply it

    def route(logits: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        logits.clone()  # torch computes, so that nothing is captured: a replay would not come here
        ids, weights = next(layers)
        return ids.int().contiguous(), (weights * factor).contiguous()

    model._factory.backend.route = route  # type: ignore[method-assign]
