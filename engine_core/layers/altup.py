"""Alternating updates (AltUp, https://arxiv.org/abs/2301.13310): a row has several residual streams, of which a layer
computes one, and predicts and corrects the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.layers.linear import ColumnParallelLinear
from engine_core.layers.lora import LoRALayers
from engine_core.layers.lora_merged import LoRAMerged
from engine_core.layers.norm import RMSNorm
from engine_core.layers.part import Part
from engine_core.ops.base import OpsBackend
from engine_core.ops.lora import MergedLoRA
from engine_core.quantization.base import QuantMethod
from engine_core.weights.features import Features, LinearShape
from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True)
class AltUpShape:
    """The streams of a row."""

    num_streams: int
    active: int
    """The stream that layers compute."""
    hidden_size: int
    scales_output: bool
    """Whether the corrected active stream is scaled for what follows in the layer."""


class AltUp(Part):
    """The coefficients of a layer: a router's, which is never quantized, times two small matrices, in float32.

    Every rank has and computes all of it. Symbols in shapes: T rows, n streams, H hidden size with padding.
    """

    def __init__(
        self,
        name: str,
        shape: AltUpShape,
        norm: RMSNorm,
        backend: OpsBackend,
        router_method: QuantMethod,
        lora: LoRALayers | None = None,
    ) -> None:
        """``norm``: of the router's input. ``lora``: None if adapters cannot add to what it computes."""
        inputs, outputs = Features(1, shape.hidden_size), Features(1, shape.num_streams, fixed=True)
        router = LinearShape.of(f"{name}.modality_router", inputs, outputs)
        self._router = ColumnParallelLinear(router, backend, router_method.expanding, lora)
        self._name = name
        self._shape = shape
        self._norm = norm
        self._backend = backend
        self._ops = backend.stream_ops()
        self._loaded: dict[str, torch.Tensor] = {}
        self._lora: dict[str, LoRAMerged] = {}
        if lora is not None:
            self._lora = {which: lora.merged(of, *shape) for which, (of, shape) in self._coefficients.items()}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return self._router.tensors() | self._small_tensors()

    @property
    def _coefficients(self) -> dict[str, tuple[str, tuple[int, int]]]:
        """Name and shape of each small matrix."""
        count = self._shape.num_streams
        return {
            "predict": (f"{self._name}.prediction_coefs", (count * count, count)),
            "correct": (f"{self._name}.correction_coefs", (count, count)),
        }

    def _small_tensors(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in self._coefficients.values()}
        return shapes | {f"{self._name}.correct_output_scale": (self._shape.hidden_size,)}

    def load(self, weights: Weights) -> None:
        self._router.load(weights)
        predict, correct, scale = (weights.take_float32(name) for name in self._small_tensors())
        scale = Features(1, self._shape.hidden_size).pad(scale, 0, self._backend)
        self._loaded = {"predict": predict, "correct": correct}
        for which, lora in self._lora.items():
            lora.load(self._loaded[which])
        if self._shape.scales_output:
            self._loaded["scale"] = scale

    @property
    def nbytes(self) -> int:
        return self._router.nbytes + sum(each.nbytes for each in self._loaded.values())

    def predict(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All streams [T, n, H] of ``streams``, and the active one [T, H], as the layer's input."""
        active, logits = self._shape.active, self._logits(streams[:, self._shape.active])
        return self._ops.predict(streams, logits, self._loaded["predict"], active, self._adapted("predict"))

    def correct(self, predicted: torch.Tensor, computed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All streams [T, n, H], by the layer's result ``computed`` [T, H] for the active one; and that one, scaled."""
        weight, scale, logits = self._loaded["correct"], self._loaded.get("scale"), self._logits(computed)
        adapted = self._adapted("correct")
        return self._ops.correct(predicted, computed, logits, weight, self._shape.active, scale, adapted)

    def _adapted(self, which: str) -> MergedLoRA | None:
        return self._lora[which].op if self._lora else None

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._router.logits(self._norm(x))
