"""The shortest possible time of a model's work: the sum over its steps (``engine_core.models.roofline``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.limits import Limits
from benchmarks.work import Work
from engine_core.config import LoadConfig, ModelConfig
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.model_loader.loader import model_outline
from engine_core.models.roofline import StepCost

_STEP_TOKENS = 2048
"""The most rows of a step, engines' default."""


@dataclass(frozen=True, slots=True)
class ModelCost(StepCost):
    """The cost of works with one model."""

    @classmethod
    def of(cls, model: Path, weight_bytes: float = 2.0) -> Self:
        """The cost of the checkpoint in the directory ``model``, computed in bfloat16."""
        checkpoint = open_checkpoint(ModelConfig(model=str(model)), LoadConfig(load_format="dummy"))
        return cls.of_model(model_outline(checkpoint)).with_weight_bytes(weight_bytes)

    def prefill_seconds(self, work: Work, limits: Limits) -> float:
        """Seconds until every sequence has its first token; a shared prefix is not computed."""
        own = work.prompt - work.shared
        rows = work.batch * own
        steps = max(1, math.ceil(rows / _STEP_TOKENS))
        seen = rows * (work.shared + (own + 1) / 2) / steps
        cached = work.batch * work.prompt / steps
        return steps * self.step(math.ceil(rows / steps), work.batch, seen, cached).seconds(limits)

    def decode_seconds(self, work: Work, limits: Limits) -> float:
        """Seconds of all steps after the first token."""
        steps = work.output - 1
        seen = work.batch * (work.prompt + work.output / 2)
        return steps * self.step(work.batch, work.batch, seen, seen).seconds(limits)

    def seconds(self, work: Work, limits: Limits) -> float:
        """Seconds of the whole work."""
        return self.prefill_seconds(work, limits) + self.decode_seconds(work, limits)
