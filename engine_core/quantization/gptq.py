"""GPTQ (Frantar et al., 2022, https://arxiv.org/abs/2210.17323) as AutoGPTQ and GPTQModel store it: codes of 4 or 8
bits, a scale and a zero for each group of inputs.

A word of ``qweight`` [K · bits / 32, N] holds one output's codes of neighbouring inputs, from the lowest bits on. A
word of ``qzeros`` [K / group, N · bits / 32] holds zeros of neighbouring outputs, each less one except in version 2 of
the format. ``g_idx`` [K] names each input's group: with ``desc_act`` the inputs of a group need not be neighbours;
without it ``g_idx`` may be missing. AutoGPTQ also stores a ``bias`` of zeros for a layer that has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine_core.errors import CheckpointError
from engine_core.quantization.config_fields import ConfigFields, groups_in_words, is_linear
from engine_core.quantization.name_patterns import Matches, NamePatterns
from engine_core.quantization.packing import columns_of, fields_of, order_of_groups, some_rows, take, take_scales
from engine_core.quantization.schemes import Scheme, SchemesConfig, Tensors, scale_dtype
from engine_core.weights.quantized_weight import (
    SIGNED4,
    SIGNED8,
    UNSIGNED4,
    UNSIGNED8,
    Offset,
    QuantFormat,
    QuantizedWeight,
)
from engine_core.weights.source import TensorRows, Weights

BITS = (4, 8)
_LEFT_OUT, _TAKEN = "-:", "+:"
"""Prefixes of rules in ``dynamic``."""


@dataclass(frozen=True, slots=True)
class GptqScheme(Scheme):
    """Codes packed along inputs."""

    has_zero_biases = True
    bits: int
    group_size: int | None
    """None: all inputs."""
    symmetric: bool
    """All zeros are half the range."""
    stored_less: int
    """Subtracted from stored zeros: 1 in version 1 of the format."""
    scale_dtype: torch.dtype
    names_groups: bool
    """There is ``g_idx``; otherwise inputs are in order."""

    def format(self, inputs: int) -> QuantFormat:
        if self.symmetric:
            return QuantFormat(SIGNED4 if self.bits == 4 else SIGNED8, self.group_size or inputs, self.scale_dtype)
        codebook = UNSIGNED4 if self.bits == 4 else UNSIGNED8
        return QuantFormat(codebook, self.group_size or inputs, self.scale_dtype, offset=Offset.ZERO)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        groups = -(-inputs // (self.group_size or inputs))
        found: dict[str, tuple[int, ...]] = {
            f"{name}.qweight": (-(-inputs * self.bits // 32), outputs),
            f"{name}.qzeros": (groups, -(-outputs * self.bits // 32)),
            f"{name}.scales": (groups, outputs),
        }
        return found | ({f"{name}.g_idx": (inputs,)} if self.names_groups else {})

    def input_order(self, name: str, inputs: int, weights: Weights) -> torch.Tensor | None:
        if not self.names_groups:
            return None
        groups = take(weights, f"{name}.g_idx", (torch.int32, torch.int64))
        return order_of_groups(groups, f"{name}.g_idx", self.group_size or inputs)

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        kept, order = self.format(inputs), self.input_order(piece.name, inputs, weights)
        for rows in some_rows(piece.rows, inputs):
            columns = slice(rows.start, rows.stop)
            words = take(weights, f"{piece.name}.qweight", (torch.int32,), slice(None), columns)
            scales = take_scales(weights, f"{piece.name}.scales", kept.scale_dtype, slice(None), columns)
            zeros = self._zeros(piece.name, rows, weights)
            codes = columns_of(fields_of(words.t(), self.bits)[:, :inputs], order)
            yield QuantizedWeight(kept, codes, scales.t().contiguous(), zeros=zeros)

    def _zeros(self, name: str, rows: range, weights: Weights) -> torch.Tensor | None:
        """[``rows``, G] uint8; None if symmetric."""
        together = 32 // self.bits
        first, last = rows.start // together, -(-rows.stop // together)
        words = take(weights, f"{name}.qzeros", (torch.int32,), slice(None), slice(first, last))
        stored = fields_of(words, self.bits)[:, rows.start - first * together : rows.stop - first * together]
        zeros = stored.to(torch.int16) + self.stored_less
        if self.symmetric:
            middle = 1 << (self.bits - 1)
            if not (zeros == middle).all():
                raise CheckpointError(f"{name}.qzeros has {self._advice(stored)}")
            return None
        if (zeros > 255).any():
            raise CheckpointError(f"{name}.qzeros has a zero of 256: expected at most 255")
        return zeros.to(torch.uint8).t().contiguous()

    def _advice(self, stored: torch.Tensor) -> str:
        """Which zeros these are, which are not symmetric, and what to set in quantization_config."""
        middle = 1 << (self.bits - 1)
        other, version = ("gptq_v2", 2) if self.stored_less else ("gptq", 1)
        if (stored == middle - 1 + self.stored_less).all():
            means = f'"quant_method": "gptq", "checkpoint_format": "{other}"'
            return f"{middle} as version {version} of the format stores it: set quantization_config to {means}"
        return f"other zeros than {middle}, but quantization_config says sym: true; set that to false"


def names_groups(tensors: Tensors) -> bool:
    """Whether layers have ``g_idx``: all or none."""
    return any(name.endswith(".g_idx") for name in tensors)


class GptqConfig(SchemesConfig):
    """Quantizes linear layers of decoder layers, and the head if ``lm_head`` is set; ``dynamic`` has rules by name."""

    def __init__(self, fields: Mapping[str, Any], tensors: Tensors) -> None:
        super().__init__()
        known = ConfigFields("GPTQ", fields)
        known.one_of("is_marlin_format", (False, None))
        stored = known.one_of("checkpoint_format", ("gptq", "gptq_v2", None))
        self._scheme = GptqScheme(
            known.one_of("bits", BITS),
            known.group_size(),
            known.flag("sym", True),
            0 if stored == "gptq_v2" else 1,
            scale_dtype(tensors, ".scales"),
            known.flag("desc_act", False) or names_groups(tensors),
        )
        self._of_head = known.flag("lm_head", False)
        self._patterns = NamePatterns(known.method)
        self._rules = [self._rule(pattern, changes) for pattern, changes in known.objects("dynamic").items()]
        self._tensors = tensors

    def _rule(self, pattern: str, changes: Mapping[str, Any]) -> tuple[Matches, GptqScheme | None]:
        """The layers that match, and their scheme."""
        scheme = None
        if not pattern.startswith(_LEFT_OUT):
            known = ConfigFields("GPTQ", changes, f"quantization_config.dynamic[{pattern!r}]")
            own = self._scheme
            scheme = replace(
                own,
                bits=known.one_of("bits", BITS, own.bits),
                group_size=known.group_size() if "group_size" in changes else own.group_size,
                symmetric=known.flag("sym", own.symmetric),
            )
        return self._patterns.matcher(pattern.removeprefix(_LEFT_OUT).removeprefix(_TAKEN)), scheme

    def scheme(self, name: str) -> GptqScheme | None:
        if f"{name}.weight" in self._tensors and f"{name}.qweight" not in self._tensors:
            return None
        if not (is_linear(name) or (name == "lm_head" and self._of_head)):
            return None
        return next((scheme for matches, scheme in self._rules if matches(name)), self._scheme)

    def describe(self) -> str:
        return f"GPTQ, {self._scheme.bits} bits in {groups_in_words(self._scheme.group_size)}"
