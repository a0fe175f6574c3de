"""vLLM options that an engine does not have, and their alternatives.

When you add an option of vLLM, under its name or another, delete its entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from engine_core.config import EngineConfig, options_of

_ENGINES = (
    "is not an option: {data_parallel_size} divides one machine among engines; on other machines start `ringline "
    "engine`, and list them in `ringline processor --engines`"
)
_CONTEXT = "is not supported: {tensor_parallel_size} and {pipeline_parallel_size} divide a model"
_EXPERTS = "is not supported: {enable_expert_parallel} gives ranks whole experts, always the same ones"
_HOSTS = "is not an option: {distributed_executor_backend} says where ranks run, ray on several hosts"
_OWN_GRAPHS = "is not supported: CUDA graphs are captured for fixed batch sizes; {enforce_eager} turns them off"

_INSTEAD: dict[tuple[str, ...], str] = {
    # Several devices
    ("tp",): "is called {tensor_parallel_size} here",
    ("pp",): "is called {pipeline_parallel_size} here",
    ("decode_context_parallel_size", "dcp", "prefill_context_parallel_size", "pcp"): _CONTEXT,
    ("ep",): "is called {enable_expert_parallel} here",
    ("enable_eplb", "eplb_config", "all2all_backend", "enable_dbo"): _EXPERTS,
    ("dp",): "is called {data_parallel_size} here",
    ("dpn",): "is called {data_parallel_rank} here",
    ("data_parallel_size_local", "dpl"): _ENGINES,
    ("data_parallel_start_rank", "dpr", "data_parallel_address", "dpa", "data_parallel_rpc_port", "dpp"): _ENGINES,
    ("data_parallel_backend", "dpb", "data_parallel_hybrid_lb", "dph", "data_parallel_external_lb"): _ENGINES,
    ("nnodes", "node_rank", "master_addr", "master_port"): _HOSTS,
    ("worker_cls", "worker_extension_cls", "ray_workers_use_nsight"): "is not supported: a worker is Ringline's own",
    ("max_parallel_loading_workers",): "is not supported: every rank reads its own part of the weights at once",
    ("disable_custom_all_reduce",): "is not needed: ranks gather what they have computed, and never add it up",
    # The checkpoint
    ("trust_remote_code", "code_revision"): (
        "is not supported: no code from a checkpoint is executed; docs/models.md lists the models that run"
    ),
    ("tokenizer_mode", "skip_tokenizer_init"): (
        "is not supported: the checkpoint's tokenizer is read from its files; {tokenizer} names another"
    ),
    ("hf_token",): "is not an option: set the environment variable HF_TOKEN",
    ("hf_overrides", "hf_config_path", "config_format", "rope_scaling", "rope_theta"): (
        "is not supported: the checkpoint's config.json counts; change it there"
    ),
    ("generation_config", "override_generation_config"): (
        "is not supported: the checkpoint's generation_config.json gives the defaults of sampling, and each request "
        "can set its own"
    ),
    ("task", "runner", "convert", "pooler_config", "override_pooler_config"): (
        "is not supported: models generate text; there are no embeddings, scores or classes"
    ),
    ("model_loader_extra_config", "ignore_patterns", "pt_load_map_location", "safetensors_load_strategy"): (
        "is not supported: weights are read from safetensors files, see {load_format}"
    ),
    ("q",): "is called {quantization} here",
    # LoRA
    ("enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "lora_modules", "lora_dtype"): (
        "is not supported yet: merge the adapter into the model's weights, and serve the merged checkpoint"
    ),
    # Memory and cache
    ("swap_space",): "is not needed: a preempted sequence is computed again, nothing is swapped to the host",
    ("cpu_offload_gb",): "is not supported: the weights must fit on the device; {quantization} makes them smaller",
    ("calculate_kv_scales",): "is not needed: in 8 bits ({kv_cache_dtype}), each token and head has scales of its own",
    ("num_gpu_blocks_override",): "is not supported: {kv_cache_memory_bytes} sets the size of the KV cache",
    ("kv_transfer_config", "kv_events_config", "kv_offloading_size", "kv_offloading_backend"): (
        "is not supported yet: an engine's KV cache stays on its device"
    ),
    ("enable_sleep_mode",): "is not supported: stop the engine to free its memory",
    # Scheduling and steps
    ("scheduling_policy",): "is called {policy} here",
    ("max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold"): (
        "is not supported: {max_num_batched_tokens} limits how many prompt tokens a step computes"
    ),
    ("speculative_config", "speculative_model"): (
        "is not supported yet: the only drafts are tokens that a grammar forces, see {num_speculative_tokens}"
    ),
    ("compilation_config", "O", "optimization_level", "cuda_graph_sizes", "cudagraph_capture_sizes"): _OWN_GRAPHS,
    ("max_seq_len_to_capture", "max_context_len_to_capture"): _OWN_GRAPHS,
    # Requests and answers
    ("guided_decoding_backend", "structured_outputs_config"): (
        "is not an option: llguidance holds answers to the form that requests ask for, such as json_schema"
    ),
    ("reasoning_parser", "enable_reasoning", "tool_call_parser", "enable_auto_tool_choice"): (
        "is not needed: answers are divided into reasoning, calls and text as the model's chat template writes them"
    ),
    ("logits_processors", "logits_processor_pattern"): (
        "is not supported: requests have logit_bias, allowed_token_ids and bad_words"
    ),
    ("max_logprobs",): "is not an option: a request may ask for the log probabilities of up to 20 tokens",
    ("enable_prompt_embeds",): "is not supported: prompts are text or token ids",
    ("limit_mm_per_prompt", "mm_processor_kwargs", "media_io_kwargs", "mm_processor_cache_gb"): (
        "is not supported: prompts are text, without images, audio or video"
    ),
    ("allowed_local_media_path", "allowed_media_domains", "disable_mm_preprocessor_cache"): (
        "is not supported: prompts are text, without images, audio or video"
    ),
    ("disable_log_stats",): "is not needed: statistics are not logged",
}
"""Python names (short flags included) → the rest of a sentence that begins with the name. ``{name}`` is an option of
``EngineConfig``."""


def instead_of_vllm_options(spelled: Callable[[str], str]) -> dict[str, str]:
    """Python name → the rest of a sentence that begins with the option: "is not supported yet: …".

    ``spelled`` formats the name of one of our options for the reader, such as ``dtype`` or ``--dtype``.
    """
    sections = [section.default_factory for section in fields(EngineConfig)]
    own = {name: spelled(name) for section in sections for name in options_of(section)}  # type: ignore[arg-type]
    return {name: text.format_map(own) for names, text in _INSTEAD.items() for name in names}
