"""The option ``--lora-modules``: adapters that an engine knows from its start, in vLLM's two forms."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_core.config import LoRAConfig
from engine_core.errors import ConfigError
from services.common.config.settings import AdapterSettings
from services.ring.identity import ADAPTER_NAME

FOLDER = "a folder that can be read"
_ACCEPTED = 'adapters as name=path or {"name": …, "path": …}, separated by commas or spaces'
_MEMBERS = {"name", "path", "base_model_name"}
_SEPARATORS = ", \t\n"


@dataclass(frozen=True, slots=True)
class LoRAModule:
    """One adapter of the option."""

    name: str
    path: str
    base_model_name: str | None = None
    """What it says of its model; None: nothing."""


def lora_modules(text: str) -> list[LoRAModule]:
    """The adapters of the option's value. Raises ``ConfigError``."""
    modules: dict[str, LoRAModule] = {}
    rest = text.strip(_SEPARATORS)
    while rest:
        read, rest = _objects(text, rest) if rest[0] in "{[" else _pair(text, rest)
        for module in read:
            if ADAPTER_NAME.fullmatch(module.name) is None:
                accepted = "names of 1 to 128 characters of A-Z, a-z, 0-9 and ._@/+-, the first a letter or a digit"
                raise ConfigError("lora_modules", module.name, accepted)
            if module.name in modules:
                raise ConfigError("lora_modules", text, f"each name once, and {module.name} comes twice")
            modules[module.name] = module
        rest = rest.strip(_SEPARATORS)
    return list(modules.values())


def check_adapters(adapters: AdapterSettings, config: LoRAConfig) -> None:
    """Raise ``ConfigError`` for options of adapters with which an engine would not start."""
    for option, value in (("lora_modules", adapters.lora_modules), ("lora_dir", adapters.lora_dir)):
        if value and not config.enable_lora:
            raise ConfigError(option, value, "--enable-lora to be given, too")
    for module in lora_modules(adapters.lora_modules):
        if not Path(module.path).is_dir():
            given, hub = f"{module.name}={module.path}", "an adapter of the hub must be downloaded before"
            raise ConfigError("lora_modules", given, f"the folder of an adapter in PEFT's format; {hub}")
    if adapters.lora_dir is not None and not Path(adapters.lora_dir).is_dir():
        raise ConfigError("lora_dir", adapters.lora_dir, FOLDER)


def _pair(text: str, rest: str) -> tuple[list[LoRAModule], str]:
    """name=path, up to the next comma."""
    word, _, rest = rest.partition(",")
    name, equals, path = word.strip().partition("=")
    if not (equals and path):
        raise ConfigError("lora_modules", text, _ACCEPTED)
    return [LoRAModule(name, path)], rest


def _objects(text: str, rest: str) -> tuple[list[LoRAModule], str]:
    """A JSON object, or an array of such."""
    try:
        value, end = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        raise ConfigError("lora_modules", text, _ACCEPTED) from None
    return [_module(text, each) for each in (value if isinstance(value, list) else [value])], rest[end:]


def _module(text: str, value: Any) -> LoRAModule:
    if not isinstance(value, dict) or not value.keys() <= _MEMBERS:
        raise ConfigError("lora_modules", text, f"objects with {', '.join(sorted(_MEMBERS))}")
    name, path, base = (value.get(each) for each in ("name", "path", "base_model_name"))
    if not (isinstance(name, str) and isinstance(path, str) and path and isinstance(base, str | None)):
        raise ConfigError("lora_modules", text, _ACCEPTED)
    return LoRAModule(name, path, base)
