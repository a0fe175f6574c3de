"""compressed-tensors, as LLM Compressor writes it: groups of layers by name or kind, with a format per group.

Inputs are not rounded, whatever ``input_activations`` says, so their scales are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine_core.errors import UnsupportedModelError
from engine_core.quantization.compressed_schemes import FP4_FORMATS, Fp4Scheme, IntScheme, PackedScheme
from engine_core.quantization.config_fields import WHOLE_ROWS, ConfigFields, is_linear
from engine_core.quantization.fp8 import fp8_scheme
from engine_core.quantization.name_patterns import PREFIX, Matches, NamePatterns
from engine_core.quantization.packing import FLOATS
from engine_core.quantization.schemes import Scheme, SchemesConfig, Tensors, scale_dtype

PACKED = "pack-quantized"
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
FORMATS = (PACKED, *PLAIN, *FP4_FORMATS)
_MIXED = "mixed-precision"

SchemeOf = Callable[[str], Scheme | None]
"""From a layer's prefix to its scheme; None if its weight turns out not to be quantized."""


class Target:
    """One layer by name, all whose names match a pattern from the beginning, or all linear layers."""

    def __init__(self, text: str, patterns: NamePatterns) -> None:
        self.text = text
        self.matches: Matches = patterns.matcher(text) if text.startswith(PREFIX) else text.__eq__
        """Whether the target names a layer itself, and not only its kind."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers stored in one format."""

    targets: tuple[Target, ...]
    scheme_of: SchemeOf
    description: str

    @property
    def of_kind(self) -> bool:
        """Whether it has all linear layers that no other group names."""
        return any(target.text == "Linear" for target in self.targets)


class CompressedTensorsConfig(SchemesConfig):
    """Quantizes layers by ``config_groups``, except those to ``ignore``."""

    def __init__(self, fields: Mapping[str, Any], tensors: Tensors) -> None:
        super().__init__()
        known = ConfigFields("compressed-tensors", fields)
        overall = known.one_of("format", (*FORMATS, _MIXED, "dense", None))
        if isinstance(sparse := fields.get("sparsity_config"), dict) and sparse.get("format", "dense") != "dense":
            raise UnsupportedModelError(f"compressed-tensors: sparse weights ({sparse['format']}) are not supported")
        if fields.get("transform_config"):
            raise UnsupportedModelError("compressed-tensors: transformed weights (transform_config) are not supported")
        self._tensors = tensors
        self._scale_dtype = scale_dtype(tensors, ".weight_scale", torch.bfloat16)
        self._patterns = NamePatterns(known.method)
        self._ignored = self._targets(known, "ignore")
        self._groups = [self._group(name, group, overall) for name, group in known.objects("config_groups").items()]

    def _group(self, name: str, fields: Mapping[str, Any], overall: str | None) -> Group:
        known = ConfigFields("compressed-tensors", fields, f"quantization_config.config_groups.{name}")
        stored = known.one_of("format", (*FORMATS, None)) or overall
        weights = fields.get("weights")
        if not isinstance(weights, dict):
            raise known.unusable("weights", "an object")
        of_weights = ConfigFields("compressed-tensors", weights, f"quantization_config.config_groups.{name}.weights")
        if stored not in FORMATS:
            raise known.unusable("format", " or ".join(FORMATS))
        kind = of_weights.one_of("type", ("int", "float"), "int")
        make = self._of_integers if kind == "int" else self._of_floats
        scheme_of, description = make(stored, of_weights)
        return Group(self._targets(known, "targets"), scheme_of, description)

    def _targets(self, known: ConfigFields, field: str) -> tuple[Target, ...]:
        return tuple(Target(text, self._patterns) for text in known.strings(field))

    def _of_integers(self, stored: str, weights: ConfigFields) -> tuple[SchemeOf, str]:
        bits = weights.one_of("num_bits", (4, 8) if stored == PACKED else (8,))
        strategy = weights.one_of("strategy", ("tensor", "channel", "group", None))
        size = weights.group_size(default=WHOLE_ROWS) if strategy in ("group", None) else None
        symmetric = weights.flag("symmetric", True)

        def scheme_of(name: str) -> Scheme:
            scales = self._tensors.get(f"{name}.weight_scale")
            of_tensor = strategy == "tensor" or (strategy is None and scales is not None and scales.shape in ((), (1,)))
            shape = None if not of_tensor else () if scales is not None and scales.shape == () else (1,)
            if stored == PACKED:
                grouped = f"{name}.weight_g_idx" in self._tensors
                return PackedScheme(bits, size, symmetric, self._scale_dtype, shape, grouped)
            return IntScheme(size, symmetric, self._scale_dtype, shape)

        return scheme_of, f"integers of {bits} bits"

    def _of_floats(self, stored: str, weights: ConfigFields) -> tuple[SchemeOf, str]:
        weights.one_of("symmetric", (True, None))
        if stored in FP4_FORMATS:
            weights.one_of("num_bits", (4,))
            weights.one_of("group_size", (FP4_FORMATS[stored],))
            scheme = Fp4Scheme(FP4_FORMATS[stored])
            return lambda name: scheme, scheme.description
        weights.one_of("num_bits", (8,))
        strategy = weights.one_of("strategy", ("tensor", "channel", "block"), "tensor")
        block = weights.pair("block_structure") if strategy == "block" else None
        if strategy == "block" and block is None:
            raise weights.unusable("block_structure", "two positive integers")
        dtype = self._scale_dtype
        return lambda name: fp8_scheme(name, self._tensors, block, dtype, otherwise=True), "FP8"

    def scheme(self, name: str) -> Scheme | None:
        weight = self._tensors.get(f"{name}.weight")
        if weight is not None and weight.dtype in FLOATS:
            return None
        if any(target.matches(name) for target in self._ignored) or not (is_linear(name) or name == "lm_head"):
            return None
        named = (group for group in self._groups for target in group.targets if target.matches(name))
        found = next(named, None) or next((group for group in self._groups if group.of_kind), None)
        return None if found is None else found.scheme_of(name)

    def describe(self) -> str:
        kinds = dict.fromkeys(group.description for group in self._groups)
        return f"compressed-tensors, {', '.join(kinds)}"
