"""AutoRound (Cheng et al., 2023, https://arxiv.org/abs/2309.05516), where it packs weights as GPTQ or AWQ do.

``extra_config`` has what differs for single layers, by name, or for several, by a regular expression that may match
anywhere in their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_core.quantization.awq import AwqScheme
from engine_core.quantization.config_fields import ConfigFields, groups_in_words, is_linear
from engine_core.quantization.gptq import GptqScheme, names_groups
from engine_core.quantization.name_patterns import Matches, NamePatterns
from engine_core.quantization.schemes import SchemesConfig, Tensors, scale_dtype

_LIKE_GPTQ, _LIKE_AWQ = "auto_round:auto_gptq", "auto_round:auto_awq"
_BITS = {_LIKE_GPTQ: (4, 8), _LIKE_AWQ: (4,)}
_NOT_QUANTIZED = (16, 32)
"""``bits`` in rules."""
_OF_PATTERNS = frozenset(r"\*+?^$()[]{}|")
"""A key without these characters is a name."""
_HEAD = "lm_head"


class AutoRoundConfig(SchemesConfig):
    """Quantizes linear layers of decoder layers, and the head if a rule names it, unless a rule says 16 bits."""

    def __init__(self, fields: Mapping[str, Any], tensors: Tensors) -> None:
        super().__init__()
        known = ConfigFields("AutoRound", fields)
        self._tensors = tensors
        self._packing = known.one_of("packing_format", _BITS)
        bits = known.one_of("bits", _BITS[self._packing])
        self._description = f"AutoRound, {bits} bits in {groups_in_words(known.group_size())}"
        self._scheme = self._scheme_of(known)
        self._by_name: dict[str, GptqScheme | AwqScheme | None] = {}
        self._by_pattern: list[tuple[Matches, GptqScheme | AwqScheme | None]] = []
        patterns = NamePatterns(known.method)
        for key, changes in known.objects("extra_config").items():
            # An empty rule leaves layers to later rules.
            if not (said := {name: value for name, value in changes.items() if value is not None}):
                continue
            place = f"quantization_config.extra_config[{key!r}]"
            scheme = self._scheme_of(ConfigFields(known.method, {**fields, **said}, place))
            if _OF_PATTERNS.isdisjoint(key):
                self._by_name[key] = scheme
            else:
                self._by_pattern.append((patterns.matcher(key, anywhere=True), scheme))

    def _scheme_of(self, known: ConfigFields) -> GptqScheme | AwqScheme | None:
        """As ``scheme``."""
        bits = known.one_of("bits", (*_BITS[self._packing], *_NOT_QUANTIZED))
        if bits in _NOT_QUANTIZED:
            return None
        known.one_of("data_type", ("int",), "int")
        group_size, symmetric = known.group_size(), known.flag("sym", True)
        if self._packing == _LIKE_AWQ:
            return AwqScheme(group_size, scale_dtype(self._tensors, ".scales"))
        return GptqScheme(
            bits,
            group_size,
            symmetric,
            stored_less=1,
            scale_dtype=scale_dtype(self._tensors, ".scales"),
            names_groups=names_groups(self._tensors),
        )

    def scheme(self, name: str) -> GptqScheme | AwqScheme | None:
        if f"{name}.weight" in self._tensors and f"{name}.qweight" not in self._tensors:
            return None
        if name in self._by_name:
            return self._by_name[name]
        if not (is_linear(name) or (name == _HEAD and f"{name}.qweight" in self._tensors)):
            return None
        return next((scheme for matches, scheme in self._by_pattern if matches(name)), self._scheme)

    def describe(self) -> str:
        return self._description
