"""``ringline engine``: one engine process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from engine_core.config import EngineConfig, LoRAConfig, ModelConfig
from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader.chat_template import read_template
from engine_core.model_loader.generation_config import overrides
from engine_core.model_loader.location import check_hub, check_location, local_path
from engine_core.model_loader.picture_options import picture_limit, preprocessor_overrides
from engine_core.platforms.host_memory import address_limit
from engine_core.progress import StartupProgress
from engine_core.vllm_options import CALLED, LOAD_FORMATS, WITHOUT_EFFECT, instead_of_vllm_options
from services.common.config.errors import FatalError, unusable_option
from services.common.config.flags import (
    SettingsCommand,
    build_settings,
    given_options,
    ignored_flags,
    with_settings,
)
from services.common.config.foreign_flags import Alias, ForeignFlags, NoEffect
from services.common.config.llama_server_options import LLAMA_SERVER_FLAGS
from services.common.config.options import build, settings_of
from services.common.config.settings import AdapterSettings, EngineServiceSettings
from services.common.config.vllm_options import VLLM_FLAGS
from services.common.process.memory import collection_paused
from services.common.telemetry.logs import configure_logs, warn_of_ignored_flags
from services.engine.adapters.modules import check_adapters
from services.engine.startup_log import StageLog

FOREIGN_FLAGS: ForeignFlags = {
    **LLAMA_SERVER_FLAGS,
    **VLLM_FLAGS,
    **instead_of_vllm_options(lambda name: "--" + name.replace("_", "-")),
    **{name: NoEffect(each.why, each.takes_value, each.only, each.otherwise) for name, each in WITHOUT_EFFECT.items()},
    **{name: Alias(option) for name, option in CALLED.items()},
    "allowed_media_domains": VLLM_FLAGS["allowed_media_domains"],
    "lora_modules": VLLM_FLAGS["lora_modules"],
    "load_format": Alias("load_format", LOAD_FORMATS),
}
"""Flags of vLLM and llama-server; vLLM's win."""

_EXTRA = ("huggingface_hub", "numpy", "safetensors", "torch", "tqdm", "transformers", "xxhash")
"""Packages that only an engine needs; an installation without the extra ``engine`` lacks them."""

_LEAST_ADDRESSES = 7 << 28
"""Bytes of address space with which torch's build for CPUs and its threads are loaded, before any model."""


@with_settings([*settings_of(EngineConfig()), *settings_of(EngineServiceSettings())])
@click.command(cls=SettingsCommand, foreign=FOREIGN_FLAGS)
@click.argument("checkpoint", metavar="[MODEL]", type=click.Path(), required=False)
def engine(checkpoint: str | None, **options: Any) -> int:
    """Run MODEL, a checkpoint's directory, GGUF file or hub id, for processors and others that send token ids."""
    values = with_model(given_options(options), checkpoint)
    if "model" not in values:
        raise click.UsageError("MODEL is missing: give a checkpoint's directory, GGUF file or hub id.")
    settings = build_settings(EngineServiceSettings(), values)
    configure_logs(settings.telemetry, settings.service)
    warn_of_ignored_flags(ignored_flags() | ignored_seed(values))
    config = engine_config(values)
    require_adapters(settings.adapters, config.lora)
    require_hub_model(config.model)

    # Read when torch is loaded. Idle OpenMP threads that spin take cores from other services and neighbors: a step has
    # been seen to take 25 times as long. Sleeping costs an engine that is alone at most 8 %.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    # Torch and transformers are loaded only once everything else is checked: loading is most of a start.
    _require_addresses()
    with engine_extra(), StartupProgress(StageLog()).stage("load libraries"), collection_paused():
        from services.engine.main import run

    return run(settings, config)


def _require_addresses() -> None:
    """Raise ``FatalError`` if libraries would end the process as they are loaded, without a word."""
    limit = address_limit()
    if limit is not None and limit < _LEAST_ADDRESSES:
        raise FatalError(
            f"the address space of this process is limited to {limit >> 20} MiB (`ulimit -v`), and an engine takes "
            f"{_LEAST_ADDRESSES >> 20} MiB before its model: raise it, or bound memory by a control group instead"
        )


@contextmanager
def engine_extra() -> Iterator[None]:
    """Wraps imports of packages that only engine installations have: ``FatalError`` says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise FatalError(
            f"the engine needs {error.name}, which is not installed: install ringline-server with its extra [engine]"
        ) from None


def engine_config(values: dict[str, Any]) -> EngineConfig:
    """The engine's options among ``values``, checked as far as possible without loading torch.

    Raises ``UsageError`` for an unusable value, ``FatalError`` for a missing model or tokenizer.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    kernel_cache_dir = str(cache / "ringline") if cache.is_absolute() else None  # XDG says to ignore a relative path
    try:
        config = build(EngineConfig(), {"kernel_cache_dir": kernel_cache_dir, **values})
        overrides(config.model)
        picture_limit(config.model)
        preprocessor_overrides(config.model)
        read_template(config.model)
        check_location(config.model.model)
        if config.model.tokenizer:
            local_path(config.model.tokenizer)
    except ConfigError as error:
        raise click.UsageError(f"{unusable_option(error.option, error.value, error.accepted)}.") from None
    except CheckpointError as error:
        raise FatalError(str(error)) from None
    return config


def require_hub_model(model: ModelConfig) -> None:
    """Raise ``FatalError`` for a hub id whose model cannot be had: a start would say so much later."""
    try:
        check_hub(model.model, model.revision, model.download_dir)
    except CheckpointError as error:
        raise FatalError(str(error)) from None


def require_adapters(adapters: AdapterSettings, config: LoRAConfig) -> None:
    """Raise ``UsageError`` for options of adapters that cannot be used: a start would say so much later."""
    try:
        check_adapters(adapters, config)
    except ConfigError as error:
        raise click.UsageError(f"{unusable_option(error.option, error.value, error.accepted)}.") from None


def ignored_seed(values: dict[str, Any]) -> dict[str, str]:
    """--seed where it changes nothing, with the reason: in vLLM and llama-server it is that of requests."""
    if "seed" not in values or values.get("load_format") == "dummy":
        return {}
    return {"--seed": "it is that of random weights (--load-format dummy); each request has its own"}


def with_model(values: dict[str, Any], checkpoint: str | None) -> dict[str, Any]:
    """``values`` with the argument MODEL as the option model; the argument overrides a variable, but not a flag."""
    context = click.get_current_context()
    if checkpoint is None:
        return values
    flagged = context.get_parameter_source("model") is click.core.ParameterSource.COMMANDLINE
    if flagged and values["model"] != checkpoint:
        raise click.UsageError(f"MODEL is {checkpoint!r} and --model is {values['model']!r}: give one of them.")
    return {**values, "model": checkpoint}
