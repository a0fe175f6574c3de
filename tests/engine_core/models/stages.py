"""A model as the stages of a pipeline, one after the other in one process, for a ``Driver``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.distributed.ranks import Rank
from engine_core.forward_context import ForwardContext
from engine_core.kv_cache_interface import StateSpec
from engine_core.layers.part_factory import PartFactory
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.models.language_model import StagedModel
from engine_core.ops.native import NativeBackend
from engine_core.quantization.selector import choose_quantization
from engine_core.states.base import StateCacheSpec
from tests.engine_core.models.driver import CPU, chosen_attention, layers_of


def load_stages(checkpoint: Checkpoint, count: int) -> list[StagedModel]:
    """Each with its own weights alone."""
    layers, attention = layers_of(checkpoint), chosen_attention()
    assert isinstance(layers, NativeBackend)
    stages = []
    for stage in range(count):
        rank = Rank(pp=stage, pp_size=count)
        quantization = choose_quantization(
            checkpoint.quantization, checkpoint.stored_quantization, group_size=checkpoint.group_size
        )
        model = make_model(checkpoint, attention, layers, CPU, quantization, rank)
        load_weights(model, checkpoint, CPU)
        stages.append(model)
    return stages


def _states_of(stage: StagedModel) -> tuple[StateSpec, ...]:
    spec = stage.state_cache_spec
    return () if spec is None else spec.layers


class Pipeline:
    """Passes on what each stage gives the next, as links would: copies."""

    def __init__(self, stages: Sequence[StagedModel]) -> None:
        self.stages = stages
        self.config = stages[0].config
        self.kv_cache_groups = stages[0].kv_cache_groups
        self._factory: PartFactory = stages[0]._factory
        self._caches: list[list[torch.Tensor]] = []

    def kv_cache_spec(self, block_size: int) -> list[KVCacheSpec]:
        return [stage.kv_cache_spec(block_size) for stage in self.stages]

    def allocate(self, specs: list[KVCacheSpec], num_blocks: int, device: torch.device) -> list[torch.Tensor]:
        attention = self._factory.attention_backend
        self._caches = [attention.allocate(spec, num_blocks, device) for spec in specs]
        return [cache for caches in self._caches for cache in caches]

    @property
    def state_cache_spec(self) -> StateCacheSpec | None:
        layers = tuple(layer for stage in self.stages for layer in _states_of(stage))
        return StateCacheSpec(layers, self.stages[0].dtype) if layers else None

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        given = self.stages[0].first_input(input_ids, positions, context)
        states = list(context.states)
        for stage, caches in zip(self.stages, self._caches, strict=True):
            rows, count = context.rows if stage.has_head else None, len(_states_of(stage))
            own = replace(context, kv_caches=caches, rows=rows, states=states[:count])
            hidden, states = stage.forward_stage(given, positions, own), states[count:]
            if not stage.has_head:
                given = stage.for_next_stage(given, hidden)
                given = type(given)(*(tensor.clone() for tensor in given.tensors()))
                following = self.stages[stage._factory.rank.pp + 1]
                assert [tuple(each.shape) for each in given.tensors()] == following.received_shapes(len(positions))
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.stages[-1].compute_logits(hidden)
