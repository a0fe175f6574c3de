"""Qwen3-Next: Qwen3.5-MoE's layers, some of which may be dense; projections are stored key head by key head."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from engine_core.layers.linear import ColumnParallelLinear
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.states import RecurrentHeads
from engine_core.models.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig, read_gated_delta_net
from engine_core.models.layered_model import DecoderLayer
from engine_core.models.model_config import positive
from engine_core.models.qwen2_moe import qwen_mixture
from engine_core.models.qwen3_5 import QwenHybrid, QwenHybridLayer

SEPARATE_GATES = "separate_gates"
"""Field of the configuration: GGUF files have queries, keys and values in one tensor, and gates in another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3NextConfig(GatedDeltaNetConfig):
    """How projections are stored."""

    separate_gates: bool


class InterleavedGatedDeltaNet(GatedDeltaNet):
    """Of each key head, one tensor has a query, a key, and the values, then the gates, of the value heads that share
    it; another one has their update inputs, then their decay inputs.
    """

    def make_qkvz(
        self, prefix: str, hidden_size: int, heads: RecurrentHeads, parts: PartFactory
    ) -> ColumnParallelLinear:
        keys, values = heads.key_dim, heads.value_dim
        values_of_key = heads.num_heads // heads.num_key_heads * values
        of_key = 2 * (keys + values_of_key)
        queries = [range(key * of_key, key * of_key + keys) for key in heads.own_key_heads]
        taken = [*queries, *_moved(queries, keys)]
        own = _rows_of_heads(heads, of_key, values)
        taken += [*_moved(own, 2 * keys), *_moved(own, 2 * keys + values_of_key)]
        outputs = heads.features("key", "key", "value", "value")
        rows = (heads.num_key_heads * of_key,)
        return parts.rows_linear((f"{prefix}.in_proj_qkvz",), hidden_size, outputs, taken, rows=rows)

    def make_ba(self, prefix: str, hidden_size: int, heads: RecurrentHeads, parts: PartFactory) -> ColumnParallelLinear:
        shared_by = heads.num_heads // heads.num_key_heads
        own = _rows_of_heads(heads, 2 * shared_by, 1)
        taken, outputs = [*own, *_moved(own, shared_by)], heads.features("head", "head")
        return parts.rows_linear((f"{prefix}.in_proj_ba",), hidden_size, outputs, taken, rows=(2 * heads.num_heads,))


def _rows_of_heads(heads: RecurrentHeads, of_key: int, width: int) -> list[range]:
    """The rows of each of this rank's value heads, ``width`` each, if a key head has ``of_key`` rows that begin with
    those of its value heads.
    """
    shared_by = heads.num_heads // heads.num_key_heads
    starts = (head // shared_by * of_key + head % shared_by * width for head in heads.own_heads)
    return [range(start, start + width) for start in starts]


def _moved(rows: list[range], by: int) -> list[range]:
    return [range(each.start + by, each.stop + by) for each in rows]


class SeparateGatesDeltaNet(InterleavedGatedDeltaNet):
    """Only update and decay inputs are stored key head by key head."""

    make_qkvz = GatedDeltaNet.make_qkvz


class Qwen3NextLayer(QwenHybridLayer):
    """With these projections."""

    linear_class = InterleavedGatedDeltaNet


class SeparateGatesLayer(QwenHybridLayer):
    """Likewise."""

    linear_class = SeparateGatesDeltaNet


class Qwen3NextForCausalLM(QwenHybrid):
    """Layers without experts have a dense feed-forward block."""

    model_type = "qwen3_next"
    layer_class = Qwen3NextLayer
    config: Qwen3NextConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Qwen3NextConfig:
        fields = read_gated_delta_net(config)
        shared = positive(config, "shared_expert_intermediate_size")
        mixture, separate = qwen_mixture(config, fields, shared), bool(getattr(config, SEPARATE_GATES, False))
        return Qwen3NextConfig(**fields, mixture=mixture, separate_gates=separate)

    def make_layers(self, parts: PartFactory) -> list[DecoderLayer]:
        make = SeparateGatesLayer if self.config.separate_gates else Qwen3NextLayer
        return [make(self.config, index, f"{self.prefix}.layers.{index}", parts) for index in self.stage_layers]
