"""The shortest time in which a model could do a work, by what it must read and compute (the roofline model: Williams,
Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785).

A step reads every matrix once and the keys and values of every sequence; a token costs two operations per weight that
it meets. A step takes the longer of the two times. Activations, norms and sampling are left out: a limit is not kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.limits import Limits
from benchmarks.work import Work
from engine_core.config import LoadConfig, ModelConfig
from engine_core.loading.checkpoint import open_checkpoint
from engine_core.models.shape import DecoderShape, tensor_shapes

_STEP_TOKENS = 2048
"""Rows of a step, as engines bound them by default."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a step, or of several."""

    read: float = 0.0
    """Bytes."""
    operations: float = 0.0

    def seconds(self, limits: Limits) -> float:
        """The least time."""
        return max(self.read / limits.bandwidth, self.operations / limits.flops)


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a model's steps cost."""

    body: int
    """Weights of the layers' matrices."""
    head: int
    """Weights of the output projection."""
    kv_bytes: int
    """Of one token's keys and values, all layers."""
    attention: int
    """Operations of one token per token that it sees."""
    weight_bytes: float
    """Of one weight: 2 for bfloat16, 1 for 8 bits."""

    @classmethod
    def of(cls, model: Path, weight_bytes: float = 2.0) -> ModelCost:
        """Of the checkpoint in that directory, computed in bfloat16."""
        checkpoint = open_checkpoint(ModelConfig(model=str(model)), LoadConfig(load_format="dummy"))
        return cls.of_shape(checkpoint.shape, weight_bytes)

    @classmethod
    def of_shape(cls, shape: DecoderShape, weight_bytes: float) -> ModelCost:
        """Of a model of that shape."""
        body = sum(math.prod(size) for name, size in tensor_shapes(shape).items() if ".layers." in name)
        return cls(
            body=body,
            head=shape.vocab_size * shape.hidden_size,
            kv_bytes=4 * shape.num_layers * shape.num_kv_heads * shape.head_dim,
            attention=4 * shape.num_layers * shape.num_heads * shape.head_dim,
            weight_bytes=weight_bytes,
        )

    def step(self, rows: int, sampled: int, seen: float, cached: float) -> Cost:
        """Of ``rows`` tokens of which ``sampled`` go through the head; ``seen`` is the sum over rows of the tokens that
        each sees, ``cached`` the tokens whose keys and values are read.
        """
        return Cost(
            read=(self.body + (self.head if sampled else 0)) * self.weight_bytes + cached * self.kv_bytes,
            operations=2.0 * (rows * self.body + sampled * self.head) + seen * self.attention,
        )

    def prefill_seconds(self, work: Work, limits: Limits) -> float:
        """Until every sequence has its first token; a shared prefix is computed by nobody."""
        own = work.prompt - work.shared
        rows = work.batch * own
        steps = max(1, math.ceil(rows / _STEP_TOKENS))
        seen = rows * (work.shared + (own + 1) / 2) / steps
        cached = work.batch * work.prompt / steps
        return steps * self.step(math.ceil(rows / steps), work.batch, seen, cached).seconds(limits)

    def decode_seconds(self, work: Work, limits: Limits) -> float:
        """Of all steps after the first token."""
        steps = work.output - 1
        seen = work.batch * (work.prompt + work.output / 2)
        return steps * self.step(work.batch, work.batch, seen, seen).seconds(limits)

    def seconds(self, work: Work, limits: Limits) -> float:
        """Of the whole work."""
        return self.prefill_seconds(work, limits) + self.decode_seconds(work, limits)
