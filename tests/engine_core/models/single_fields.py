"""Changes of one field of a configuration to its plausible values, derived from types, from what transformers reads,
and from what other test configurations have: a new family is swept without a line here.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    cache_utils,
    configuration_utils,
    masking_utils,
    modeling_rope_utils,
)
from transformers.activations import ACT2FN
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES, ALLOWED_MLP_LAYER_TYPES
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters
from transformers.models.auto import configuration_auto

from tests.engine_core.models.families import FIRST, OWN

ABSENT = object()
"""As a value: the field is not there."""
_IDENTITY = ("model_type", "architectures", "transformers_version")
"""What names a configuration instead of describing a model."""
_READ_BY_ALL = (cache_utils, configuration_auto, configuration_utils, masking_utils, modeling_rope_utils)
_ROPES = ("rope_parameters", "rope_scaling")
_FULL, _WINDOW, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


@dataclass(frozen=True)
class Change:
    """One field changed."""

    field: str
    value: Any
    """``ABSENT``, or as in JSON."""
    inside: tuple[str, ...] = ()
    """What a refusal may name instead: the parameter that was changed inside of the field."""

    def applied(self, raw: dict[str, Any]) -> dict[str, Any]:
        """``raw``, a configuration as JSON, with the change."""
        changed = copy.deepcopy({name: value for name, value in raw.items() if name != self.field})
        return changed if self.value is ABSENT else changed | {self.field: copy.deepcopy(self.value)}

    def __str__(self) -> str:
        return f"{self.field} absent" if self.value is ABSENT else f"{self.field}={self.value!r}"


@cache
def raw_config(name: str) -> dict[str, Any]:
    """The test configuration of that name as a config.json would have it."""
    config = OWN[name]
    raw: dict[str, Any] = config.to_dict()
    return raw | {"architectures": [AutoModelForCausalLM._model_mapping[type(config)].__name__]}


def changes_of(name: str) -> Iterator[Change]:
    """Those of the test configuration of that name; the first one of a family has some more."""
    raw = raw_config(name)
    config = OWN[name]
    types = {field.name: str(field.type) for field in fields(config)}
    names = [*raw, *(each for each in types if each not in raw)]
    is_first = FIRST[config.model_type] == name
    if is_first:
        names += sorted(_read_by(config) & (_names_of_configurations() | _READ_EVERYWHERE) - {*names})
    for field in names:
        if field in _IDENTITY or field in _ROPES:
            continue
        old = raw.get(field, ABSENT)
        for value in _distinct([*_values(field, old, types.get(field, ""), raw), *_used_elsewhere(field, config)]):
            if not _same(value, old):
                yield Change(field, value)
    yield from _rope_changes(raw, _words(_modeling(config)), is_first)


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))


def _distinct(values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if not any(_same(value, each) for each in kept):
            kept.append(value)
    return kept


def _values(field: str, old: Any, annotation: str, raw: dict[str, Any]) -> Iterator[Any]:
    """What a field may have instead of ``old``, by the type of that and by its annotation."""
    yield ABSENT
    yield None
    if field == "per_layer_config":
        yield from _per_layer_values(raw)
    elif field == "layer_types" or (isinstance(old, list) and {*old} & {*ALLOWED_ATTN_LAYER_TYPES}):
        yield from _lists_of_types(_num_layers(raw), (_FULL, _WINDOW, _CHUNKED))
    elif isinstance(old, list) and {*old} & {*ALLOWED_MLP_LAYER_TYPES}:
        yield from _lists_of_types(_num_layers(raw), ALLOWED_MLP_LAYER_TYPES)
    elif isinstance(old, list) and old and {*old} <= {0, 1}:
        yield from ([1 - each for each in old], [0] * len(old), [1] * len(old), [])
    elif "list[int]" in annotation:
        yield from ([], [0], [0, 1], 3)
    elif isinstance(old, str):
        yield from sorted(ACT2FN) if old in ACT2FN else ()
    elif isinstance(old, bool) or "bool" in annotation:
        yield from (True, False)
    elif isinstance(old, int):
        yield from _distinct([0, 1, 2, old + 1, 2 * old, old // 2])
    elif isinstance(old, float):
        yield from (0.0, 0.1, 1.0, 2.0 * old, 0.5 * old)
    elif "float" in annotation:
        yield from (0.3, 1.0, 3.0)
    elif "int" in annotation:
        yield from (1, 16, 24)
    elif old is ABSENT and not annotation:
        yield from (True, False, 2, 0.5)


def _num_layers(raw: dict[str, Any]) -> int:
    """Nemotron-H's is the length of a list."""
    count: int = raw["num_hidden_layers"] if "num_hidden_layers" in raw else len(raw["layers_block_type"])
    return count


def _lists_of_types(count: int, types: tuple[str, ...]) -> Iterator[list[str]]:
    """All of one type; the first two in turns; one too few."""
    for each in types:
        yield [each] * count
    first, second, *_ = types
    yield [(first, second)[layer % 2] for layer in range(count)]
    yield [(second, first)[layer % 2] for layer in range(count)]
    yield [first] * (count - 1)


def _per_layer_values(raw: dict[str, Any]) -> Iterator[dict[str, dict[str, Any]]]:
    """One number of one layer doubled, for every number of a configuration, or one part of it left out."""
    for name, value in raw.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            yield {"1": {name: 2 * value}}
    yield {"1": {"sliding_window": 5}}
    yield from ({"1": {"skip": [part]}} for part in ("attention", "mlp"))


def _used_elsewhere(field: str, config: PretrainedConfig) -> Iterator[Any]:
    """What other test configurations have there: of the same family; of all, where this one does not know the field."""
    known = {each.name for each in fields(config)}
    values = [
        raw_config(name)[field]
        for name, other in OWN.items()
        if field in raw_config(name) and (other.model_type == config.model_type or field not in known)
    ]
    yield from _distinct([each for each in values if not isinstance(each, dict)])[:6]


_READ_EVERYWHERE = frozenset({"is_causal", "per_layer_config"}) | {
    name
    for module in (masking_utils, modeling_rope_utils)
    for found in re.findall(
        r"config\.([a-z]\w+)\b(?!\()|getattr\((?:\w*config|self), \"([a-z]\w+)\"", inspect.getsource(module)
    )
    for name in found
    if name
}
"""Fields that transformers reads of every configuration."""


@cache
def _names_of_configurations() -> frozenset[str]:
    """Fields of all families' configurations."""
    return frozenset(name for config in OWN.values() for name in (*config.to_dict(), *(f.name for f in fields(config))))


def _read_by(config: PretrainedConfig) -> set[str]:
    """Words in the sources of what transformers makes of ``config``: no other field can matter."""
    return set().union(
        *map(_words, (_modeling(config), importlib.import_module(type(config).__module__), *_READ_BY_ALL))
    )


def _modeling(config: PretrainedConfig) -> ModuleType:
    return importlib.import_module(AutoModelForCausalLM._model_mapping[type(config)].__module__)


@cache
def _words(module: ModuleType) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", inspect.getsource(module)))


def _rope_changes(raw: dict[str, Any], read: frozenset[str], is_first: bool) -> Iterator[Change]:
    """Other rotations, under both names of the field, for all layers or by their types."""
    told = raw.get("rope_parameters")
    if told is None:
        return
    kinds = sorted(key for key, value in told.items() if isinstance(value, dict))
    current = told[kinds[0]] if kinds else told
    theta = {"rope_theta": current.get("rope_theta", 1000.0)}
    for field in _ROPES:
        yield from (Change(field, value) for value in (ABSENT, None, {}) if field in raw or value is not ABSENT)
    for template in _templates(raw):
        own = theta | template
        kind = own["rope_type"]
        yield Change("rope_parameters", dict.fromkeys(kinds, own) if kinds else own, (kind, *own))
        if not is_first:
            continue
        yield Change("rope_scaling", template | {"type": kind}, (kind, *own))
        plain = dict.fromkeys((_FULL, _WINDOW), theta | {"rope_type": "default"})
        for layers in sorted({_FULL, _WINDOW} & {*(raw.get("layer_types") or ())}):
            yield Change("rope_parameters", plain | {layers: own}, (kind, *own))
        for parameter, annotation in _PARAMETERS.items():
            if parameter not in _read_of_type(kind) | read:
                continue
            for value in _parameter_values(parameter, own.get(parameter, ABSENT), annotation):
                one = Change(parameter, value).applied(own)
                yield Change("rope_parameters", dict.fromkeys(kinds, one) if kinds else one, (parameter, kind))
    for parameter in current:
        for value in _parameter_values(parameter, current[parameter], _PARAMETERS.get(parameter, "")):
            one = Change(parameter, value).applied(current)
            yield Change("rope_parameters", told | {kinds[0]: one} if kinds else one, (parameter,))


_PARAMETERS: dict[str, str] = {name: str(kind) for name, kind in RopeParameters.__annotations__.items()} | {
    "llama_4_scaling_beta": "float"
}


@cache
def _read_of_type(rope_type: str) -> frozenset[str]:
    """Words in what transformers makes of a rotation; ``partial_rotary_factor`` and its like are among them."""
    check = getattr(PretrainedConfig, f"_validate_{rope_type}_rope_parameters")
    sources = [check, *([ROPE_INIT_FUNCTIONS[rope_type]] if rope_type in ROPE_INIT_FUNCTIONS else [])]
    return frozenset(re.findall(r"\w+", "\n".join(map(inspect.getsource, sources)))) | {"partial_rotary_factor"}


def _templates(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A rotation of every type."""
    head_dim = raw.get("qk_rope_head_dim") or raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    pairs = int(head_dim * (raw["rope_parameters"].get("partial_rotary_factor") or 1)) // 2
    everything = {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [1.0 + pair for pair in range(pairs)],
    }
    for rope_type in ("default", *ROPE_INIT_FUNCTIONS):
        needed = inspect.getsource(getattr(PretrainedConfig, f"_validate_{rope_type}_rope_parameters"))
        yield {"rope_type": rope_type} | {name: value for name, value in everything.items() if f'"{name}"' in needed}


def _parameter_values(name: str, old: Any, annotation: str) -> Iterator[Any]:
    if name == "rope_type":
        return
    if old is not ABSENT:
        yield from (ABSENT, None)
    if "bool" in annotation:
        yield from (True, False)
    elif isinstance(old, list):
        yield [2 * each for each in old]
    elif name == "original_max_position_embeddings":
        yield from (16, 128)
    elif "list" not in annotation:
        yield from (0.5, 1.0, 3.0)
