"""Options of ``LLM``: callers' values by name, for any section of ``EngineConfig``."""

from __future__ import annotations

import difflib
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from fractions import Fraction
from os import PathLike, fspath
from typing import Any

from engine_core.config import EngineConfig, options_of
from engine_core.errors import ConfigError, UnknownOptionError
from engine_core.offline.numpy_to_python import plain
from engine_core.vllm_options import LOAD_FORMATS, WITHOUT_EFFECT, instead_of_vllm_options

_TYPO_SIMILARITY = 0.8
"""Least similarity, by ``difflib``, at which a name counts as a misspelling of another."""
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_DTYPES = {"half": "float16", "float": "float32"}
"""vLLM's words for ``dtype``."""
_OBJECTS = (
    "override_generation_config",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
    "pooler_config",
    "speculative_config",
)
"""Options with a JSON object."""
_LONGEST = 64
"""Characters; Python takes quadratic time for the digits of longer numbers."""


def configure(**options: Any) -> EngineConfig:
    """An ``EngineConfig`` from options by name; also accepts sizes as text (512MiB), paths and numpy's numbers.

    An option of vLLM that changes nothing here is ignored with a warning, one that is off without. Raises
    ``UnknownOptionError``, which suggests alternatives, and ``ConfigError`` for unusable values.
    """
    sections: dict[str, type[Any]] = {section.name: section.default_factory for section in fields(EngineConfig)}  # type: ignore[misc]
    known = {option: name for name, section in sections.items() for option in options_of(section)}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for option, value in options.items():
        if _is_ignored(option, value):
            continue
        if option not in known:
            raise UnknownOptionError(option, value, _instead_of(option, known))
        chosen[known[option]][option] = _value(option, value, options_of(sections[known[option]])[option])
    if "seed" in chosen["model"] and chosen["load"].get("load_format") != "dummy":  # vLLM's is that of sampling
        problem = "it is that of random weights (load_format='dummy'); SamplingParams have their own"
        warnings.warn(f"seed has no effect: {problem}", UserWarning, stacklevel=3)
    return EngineConfig(**{name: section(**chosen[name]) for name, section in sections.items()})


def _is_ignored(option: str, value: object) -> bool:
    """Whether ``option`` is vLLM's and has no effect here, which a warning says. Raises ``UnknownOptionError``."""
    is_off = value is None or (isinstance(value, bool | int | float | str | list | tuple | dict) and not value)
    if is_off and option in (WITHOUT_EFFECT.keys() | instead_of_vllm_options(str)):
        return True
    entry = WITHOUT_EFFECT.get(option)
    if entry is None:
        return False
    if entry.only and value is not None and str(value) not in entry.only:
        raise UnknownOptionError(option, value, f"{option}={value!r} {entry.otherwise}")
    warnings.warn(f"{option} has no effect: {entry.why}", UserWarning, stacklevel=4)
    return True


def _instead_of(option: str, known: Iterable[str]) -> str:
    """The error for an option that does not exist."""
    instead = instead_of_vllm_options(str).get(option)
    if instead is not None:
        return f"{option} {instead}"
    near = difflib.get_close_matches(option, known, n=1, cutoff=_TYPO_SIMILARITY)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "engine_core/config.py and docs/reference/configuration.md list all options"
    )
    return f"unknown option {option}; {hint}"


def _value(name: str, value: Any, declared: Mapping[str, Any]) -> Any:
    """The option's value in the form that its section takes."""
    if name == "dtype" and isinstance(value, str):
        return _DTYPES.get(value, value)
    if name in _OBJECTS and isinstance(value, Mapping):
        return json.dumps(dict(value), default=plain)
    if name == "generation_config" and value == "vllm":  # vLLM's word
        return "none"
    if name == "load_format" and isinstance(value, str):
        return LOAD_FORMATS.get(value, value)
    if declared.get("unit") != "bytes" or not isinstance(value, str):
        return fspath(value) if isinstance(value, PathLike) else plain(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip()[: _LONGEST + 1])
    if match is None or len(match[0]) > _LONGEST or match[2].upper() not in _UNITS:
        raise ConfigError(name, value, "a number of bytes (such as 1048576, 512MiB or 4GiB)")
    return round(Fraction(match[1]) * _UNITS[match[2].upper()])
