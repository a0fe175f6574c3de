"""``adapter_config.json``, as PEFT writes it: what decides an adapter's results, and what is refused.

Which modules were to be trained (``target_modules``, ``exclude_modules``, ``layers_to_transform``) decides nothing: the
file has the tensors of those that were.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine_core.errors import AdapterError, written
from engine_core.lora.name_regex import NameRegex, NameRegexError, Steps

CONFIG = "adapter_config.json"
MERGE = "merge the adapter into its base with PEFT's merge_and_unload, and serve the result as a model of its own"

_HONOURED = {
    "alpha_pattern",
    "base_model_name_or_path",
    "init_lora_weights",
    "lora_alpha",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "r",
    "rank_pattern",
    "target_parameters",
    "use_rslora",
}
_WITHOUT_EFFECT = {
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",  # what is tied is in the file, once for each place
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
}
"""Fields for training, or of what others decide."""
_REFUSED = {
    "alora_invocation_tokens": "an adapter that is active behind certain tokens alone (aLoRA)",
    "arrow_config": "a choice among adapters for each token (Arrow)",
    "bias": "biases",
    "fan_in_fan_out": "transposed weights",
    "kasa_config": "a base without its smallest singular values (KaSA)",
    "layer_replication": "layers that the base does not have",
    "lora_bias": "biases",
    "megatron_config": "Megatron's layers",
    "monteclora_config": "random factors (MonteCLoRA)",
    "trainable_token_indices": "embeddings of single tokens",
    "use_bdlora": "matrices of diagonal blocks (BD-LoRA)",
    "use_dora": "magnitudes of weights (DoRA)",
    "use_qalora": "inputs in groups (QA-LoRA)",
    "velora_config": "VeLoRA",
}
"""Fields that change results, by what they bring."""
_INITIAL = ("true", "false", "gaussian", "eva", "orthogonal", "mica")
"""Values of ``init_lora_weights`` that leave the base as it is."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_MOST_RANK = 2**20
_LARGEST = 2.0**120
"""Of scalings, which are float32."""
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?![0-9])")


@dataclass(frozen=True, slots=True)
class PEFTConfig:
    """The fields that decide what an adapter adds, by PEFT's names."""

    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    """By a regular expression over the ends of modules' names; the first that matches counts."""
    alpha_pattern: Mapping[str, float]
    modules_to_save: tuple[str, ...]
    target_parameters: tuple[str, ...]
    """Ends of parameters' names."""
    base_model: str
    """For messages."""
    peft_version: tuple[int, int]
    """(0, 0): of a version that does not say so."""

    def targets_parameter(self, name: str) -> bool:
        """Whether matrices are for the parameter ``name``, which is in a module that is no linear layer."""
        return any(name == each or name.endswith(f".{each}") for each in self.target_parameters)


@dataclass(frozen=True, slots=True)
class LayerScale:
    """Of the matrices for one module."""

    rank: int
    scaling: float
    """Factor of B · A."""


class LayerScales:
    """Finds each module's rank and factor as PEFT does."""

    def __init__(self, config: PEFTConfig) -> None:
        """Raises ``AdapterError``, as does ``of``, about patterns."""
        self._config = config
        matchers = _Matchers()
        self._ranks = [(key, matchers.make("rank_pattern", key)) for key in config.rank_pattern]
        self._alphas = [(key, matchers.make("alpha_pattern", key)) for key in config.alpha_pattern]

    def of(self, name: str) -> LayerScale:
        """``name``: PEFT's, of a module or a parameter."""
        config = self._config
        rank = config.rank_pattern.get(_first(self._ranks, name), config.r)
        alpha = config.alpha_pattern.get(_first(self._alphas, name), config.lora_alpha)
        scaling = alpha / math.sqrt(rank) if config.use_rslora else alpha / rank
        return LayerScale(rank, scaling)


_Matches = Callable[[str], bool]
_PLAIN = re.compile(r"\^?[A-Za-z0-9_.]+")
_MOST_STEPS = 500_000
_MOST_COMPARISONS = 5_000_000
"""Of keys without syntax. Both limits take about a second."""


def _first(patterns: list[tuple[str, _Matches]], name: str) -> str:
    return next((key for key, matches in patterns if matches(name)), name)


class _Matchers:
    """Makes functions: whether a name is, or ends with a dot and, what a pattern matches."""

    def __init__(self) -> None:
        self._steps = Steps(_MOST_STEPS)
        self._comparisons = Steps(_MOST_COMPARISONS)

    def make(self, field: str, key: str) -> _Matches:
        """Raises ``AdapterError``, as does the function."""
        try:
            matches = self._plain(key) if _PLAIN.fullmatch(key) else NameRegex(rf"(.*\.)?({key})$", self._steps).matches
        except NameRegexError as error:
            raise _bad_pattern(field, key, error) from error

        def checked(name: str) -> bool:
            try:
                return matches(name)
            except NameRegexError as error:
                raise _bad_pattern(field, key, error) from error

        return checked

    def _plain(self, key: str) -> _Matches:
        """For a key without other syntax than dots: some adapters have one for each module."""
        whole, text = key.startswith("^"), key.removeprefix("^")
        between_dots = [(found.start(), found[0]) for found in re.finditer(r"[^.]+", text)]

        def matches(name: str) -> bool:
            self._comparisons.take(1)
            before, end = name[: -len(text)], name[-len(text) :]
            if len(end) < len(text) or (before and (whole or not before.endswith("."))):
                return False
            if end == text:
                return True
            self._comparisons.take(len(between_dots))
            return all(end.startswith(part, start) for start, part in between_dots)

        return matches


def _bad_pattern(field: str, key: str, error: NameRegexError) -> AdapterError:
    return AdapterError(f"{CONFIG}: {key!r:.80} in {field} {error}")


def read_peft_config(raw: Mapping[str, Any]) -> PEFTConfig:
    """The configuration in ``raw``, the JSON object. Raises ``AdapterError`` naming the field."""
    if (peft_type := raw.get("peft_type")) != "LORA":
        raise _wrong("peft_type", peft_type, '"LORA": other kinds of adapters are not supported')
    for name, value in raw.items():
        if not _is_off(name, value):
            _refuse(name, value)
    _check_initial(raw.get("init_lora_weights", True))
    return PEFTConfig(
        r=_rank("r", raw.get("r", 8)),
        lora_alpha=_alpha("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=_flag("use_rslora", raw.get("use_rslora", False)),
        rank_pattern={key: _rank(f"rank_pattern[{key!r:.80}]", each) for key, each in _pattern("rank_pattern", raw)},
        alpha_pattern={
            key: _alpha(f"alpha_pattern[{key!r:.80}]", each) for key, each in _pattern("alpha_pattern", raw)
        },
        modules_to_save=_names("modules_to_save", raw),
        target_parameters=_names("target_parameters", raw),
        base_model=base if isinstance(base := raw.get("base_model_name_or_path"), str) and base.isprintable() else "",
        peft_version=_version(raw.get("peft_version")),
    )


def _is_off(name: str, value: object) -> bool:
    """Whether a field leaves results as they are."""
    if name in _HONOURED or name in _WITHOUT_EFFECT:
        return True
    return value is None or value is False or value in ({}, [], "", "none")


def _refuse(name: str, value: object) -> None:
    if name in _REFUSED:
        raise AdapterError(
            f"{CONFIG}: {name}={written(value):.80} brings {_REFUSED[name]}, which the engine does not compute: {MERGE}"
        )
    raise AdapterError(
        f"{CONFIG}: {name!r:.80}={written(value):.80} is not known here and may change results: if not, remove it"
    )


def _check_initial(value: object) -> None:
    """PEFT applies it again when it loads an adapter, before it takes the tensors of the file."""
    name = str(value).lower() if isinstance(value, str | bool) else ""
    if value is None or name in _INITIAL:
        return
    if name.startswith(_CHANGES_BASE):
        raise AdapterError(
            f"{CONFIG}: init_lora_weights={value!r:.80} changes the base's weights, which other requests share: save "
            "the adapter with save_pretrained's path_initial_model_for_weight_conversion, or serve the changed base"
        )
    raise _wrong("init_lora_weights", value, f"one of {', '.join(_INITIAL)}")


def _wrong(field: str, value: object, expected: str) -> AdapterError:
    return AdapterError(f"{CONFIG}: {field}={written(value):.80} is not usable: expected {expected}")


def _rank(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_RANK:
        raise _wrong(field, value, f"a whole number of 1 to {_MOST_RANK}")
    return value


def _alpha(field: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST:
        raise _wrong(field, value, "a number")
    return float(value)


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(field, value, "true or false")
    return value


def _pattern(field: str, raw: Mapping[str, Any]) -> list[tuple[str, object]]:
    value = raw.get(field)
    if value is not None and not isinstance(value, dict):
        raise _wrong(field, value, "an object of numbers by names of modules")
    return list((value or {}).items())


def _names(field: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    value = raw.get(field)
    if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise _wrong(field, value, "a list of names")
    return tuple(value or ())


def _version(value: object) -> tuple[int, int]:
    found = _VERSION.match(value) if isinstance(value, str) else None
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
