"""The known ``RINGLINE_…`` variables, and a search for unknown ones, which are mostly misspelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from services.common.config.options import TYPO_SIMILARITY, VARIABLE_PREFIX, is_service_link, settings_of
from services.common.config.settings import (
    DetokenizerSettings,
    EngineServiceSettings,
    GatewaySettings,
    ProcessorSettings,
)
from services.common.config.stack_settings import StackSettings

PARENT_PID_VARIABLE = "RINGLINE_PARENT_PID"
"""A supervisor's pid, in the environment of its children."""
HEARTBEAT_PIPE_VARIABLE = "RINGLINE_BEAT_PIPE"
"""File descriptor of a child's heartbeat pipe, set by its supervisor."""
ADDRESS_VARIABLE = VARIABLE_PREFIX + "ADDRESS"
"""Address of the processor, for the client commands."""
SERVER_NAME_VARIABLE = VARIABLE_PREFIX + "TLS_SERVER_NAME"
"""The name that the processor's certificate must have."""
TOKEN_FILE_VARIABLE = VARIABLE_PREFIX + "TOKEN_FILE"
"""File with the token to send to the processor."""
TOKEN_VARIABLE = VARIABLE_PREFIX + "TOKEN"
"""The token itself, as the client library takes it."""

ENGINE_OPTIONS = (
    "model",
    "served_model_name",
    "tokenizer",
    "skip_tokenizer_init",
    "revision",
    "tokenizer_revision",
    "download_dir",
    "dtype",
    "max_model_len",
    "quantization",
    "quantization_group_size",
    "int8_activations",
    "language_model_only",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
    "max_picture_tokens",
    "model_impl",
    "runner",
    "pooler_config",
    "chat_template",
    "generation_config",
    "override_generation_config",
    "seed",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "state_cache_share",
    "block_size",
    "enable_prefix_caching",
    "encoder_cache_tokens",
    "media_memory_bytes",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_num_queued_reqs",
    "policy",
    "enable_chunked_prefill",
    "async_scheduling",
    "num_speculative_tokens",
    "speculative_config",
    "load_format",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "device",
    "num_threads",
    "attention_backend",
    "kernel_cache_dir",
    "enforce_eager",
    "deterministic",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "data_parallel_rank",
    "distributed_executor_backend",
    "enable_expert_parallel",
    "worker_start_timeout",
    "ray_address",
    "ray_namespace",
)
"""Names of the options of ``engine_core.config``. The CPU tiers may not import it, but know its variables, because
services may share one environment. A test compares the names with the declarations."""


def known_variables() -> frozenset[str]:
    """All variables that any process of the ring reads."""
    services = (EngineServiceSettings(), ProcessorSettings(), DetokenizerSettings(), GatewaySettings())
    declared = {setting.variable for defaults in (*services, StackSettings()) for setting in settings_of(defaults)}
    return frozenset(declared | {VARIABLE_PREFIX + name.upper() for name in ENGINE_OPTIONS}) | {
        ADDRESS_VARIABLE,
        PARENT_PID_VARIABLE,
        HEARTBEAT_PIPE_VARIABLE,
        SERVER_NAME_VARIABLE,
        TOKEN_FILE_VARIABLE,
        TOKEN_VARIABLE,
    }


def unknown_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """The ``RINGLINE_…`` variables that no process reads, with the most similar known one, if any is similar.

    Service links of Kubernetes (``RINGLINE_PROCESSOR_SERVICE_HOST``) are left out.
    """
    known = known_variables()
    words = sorted(name.removeprefix(VARIABLE_PREFIX) for name in known)
    for name in sorted(environment):
        is_ours = name.startswith(VARIABLE_PREFIX) and not is_service_link(name, environment[name])
        if is_ours and name not in known:
            nearest = difflib.get_close_matches(name.removeprefix(VARIABLE_PREFIX), words, n=1, cutoff=TYPO_SIMILARITY)
            yield name, VARIABLE_PREFIX + nearest[0] if nearest else None


def hidden_by_service_links(environment: Mapping[str, str]) -> list[str]:
    """The option variables that hold a Kubernetes service link. Options ignore such values."""
    return [name for name in sorted(known_variables()) if is_service_link(name, environment.get(name, ""))]
