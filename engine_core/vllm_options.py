"""vLLM options that an engine does not have: called otherwise here, without effect, or with an alternative.

When you add an option of vLLM, under its name or another, delete its entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from engine_core.config import EngineConfig, options_of

_ENGINES = (
    "is not an option: {data_parallel_size} divides one machine among engines; on other machines start `ringline "
    "engine`, and list them in `ringline processor --engines`"
)
_CONTEXT = "is not supported: {tensor_parallel_size} and {pipeline_parallel_size} divide a model"
_EXPERTS = "is not supported: {enable_expert_parallel} gives ranks whole experts, always the same ones"
_HOSTS = "is not an option: {distributed_executor_backend} says where ranks run, ray on several hosts"
_LORA = "is not supported: merge the adapter into the model's weights, and serve the merged checkpoint"
_OFFLOAD = "is not supported: the weights must fit on the device; {quantization} makes them smaller"
_ENCODES_ONLY = "is not supported: an engine encodes pictures and generates text"
_TRANSFER = "is not supported yet: an engine's KV cache stays on its device"
_PROCESSORS = (
    "is not supported: requests have logit_bias, allowed_token_ids and bad_words, and no_repeat_ngram against loops"
)
_CONFIG = (
    "is not supported: the checkpoint's config.json counts, or a GGUF file's metadata; change a copy of the checkpoint"
)
_ROTATIONS = (
    "is not supported: positions are scaled as config.json's rope_parameters say, or the metadata of a GGUF file; "
    "change a copy of the checkpoint"
)
_STATE = "is not supported: a state that is no KV cache has the model's type, and the options of the KV cache"

CALLED = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "ep": "enable_expert_parallel",
    "q": "quantization",
    "dp": "data_parallel_size",
    "dpn": "data_parallel_rank",
    "scheduling_policy": "policy",
    "sc": "speculative_config",
    "task": "runner",
    "override_pooler_config": "pooler_config",
}
"""Python names (short flags included) → the option that is called otherwise here."""

LOAD_FORMATS = {
    **dict.fromkeys(("hf", "mistral", "gguf", "bitsandbytes"), "auto"),
    **dict.fromkeys(("fastsafetensors", "runai_streamer", "instanttensor"), "safetensors"),
}
"""vLLM's values of ``load_format`` → ours, which reads the same weights."""

_INSTEAD: dict[tuple[str, ...], str] = {
    # Several devices
    ("decode_context_parallel_size", "dcp", "prefill_context_parallel_size", "pcp", "dcp_comm_backend"): _CONTEXT,
    ("dcp_kv_cache_interleave_size", "cp_kv_cache_interleave_size"): _CONTEXT,
    ("enable_eplb", "eplb_config", "enable_elastic_ep", "expert_placement_strategy", "num_redundant_experts"): _EXPERTS,
    ("eplb_window_size", "eplb_step_interval", "eplb_log_balancedness"): _EXPERTS,
    ("data_parallel_size_local", "dpl"): _ENGINES,
    ("data_parallel_start_rank", "dpr", "data_parallel_address", "dpa", "data_parallel_rpc_port", "dpp"): _ENGINES,
    ("data_parallel_hybrid_lb", "dph"): (
        "is not an option: `ringline processor --zone` prefers the engines of its own zone"
    ),
    ("data_parallel_external_lb", "dpe"): (
        "is not an option: run several processors with the same --engines behind one name"
    ),
    ("data_parallel_backend", "dpb"): _ENGINES,
    ("data_parallel_multi_port_external_lb", "data_parallel_supervisor_port"): _ENGINES,
    ("dp_supervisor_probe_interval_s", "dp_supervisor_probe_timeout_s"): _ENGINES,
    ("dp_supervisor_probe_failure_threshold", "disable_nccl_for_dp_synchronization"): _ENGINES,
    ("nnodes", "node_rank", "master_addr", "master_port"): _HOSTS,
    ("distributed_timeout_seconds",): "is not an option: {worker_start_timeout} limits the start of ranks",
    ("worker_cls", "worker_extension_cls", "ray_workers_use_nsight"): "is not supported: a worker is Ringline's own",
    # The checkpoint
    ("code_revision",): "is not supported: no code from a checkpoint is executed",
    ("hf_token",): "is not an option: set the environment variable HF_TOKEN",
    ("hf_overrides", "hf_config_path", "disable_sliding_window"): _CONFIG,
    ("rope_scaling", "rope_theta"): _ROTATIONS,
    ("quantization_config", "override_attention_dtype", "override_neuron_config"): _CONFIG,
    ("model_loader_extra_config", "ignore_patterns", "pt_load_map_location"): (
        "is not supported: weights are mapped from safetensors or PyTorch's files, see {load_format}"
    ),
    # LoRA
    ("lora_modules", "default_mm_loras"): "is an option of services: `ringline serve --lora-modules name=path`",
    ("lora_target_modules",): "is not supported: an adapter's files say what it adds to",
    (
        "enable_tower_connector_lora",
    ): "is not supported: adapters add to the language model, not to what encodes pictures",
    ("enable_lora_bias", "lora_extra_vocab_size", "long_lora_scaling_factors"): _LORA,
    ("qlora_adapter_name_or_path", "enable_prompt_adapter", "prompt_adapters", "max_prompt_adapters"): _LORA,
    ("max_prompt_adapter_token",): _LORA,
    # Memory and cache
    ("cpu_offload_gb", "cpu_offload_params", "offload_backend", "offload_group_size"): _OFFLOAD,
    ("offload_num_in_group", "offload_prefetch_step", "offload_params"): _OFFLOAD,
    ("kv_cache_dtype_skip_layers",): "is not supported: {kv_cache_dtype} is that of all layers",
    ("num_gpu_blocks_override",): "is not supported: {kv_cache_memory_bytes} sets the size of the KV cache",
    ("mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_block_size", "mamba_cache_mode"): _STATE,
    ("enable_mamba_cache_stochastic_rounding", "mamba_cache_philox_rounds"): _STATE,
    ("kv_transfer_config", "kv_events_config", "kv_offloading_size", "kv_offloading_backend"): _TRANSFER,
    ("ec_transfer_config", "weight_transfer_config"): _TRANSFER,
    ("enable_sleep_mode",): "is not supported: stop the engine to free its memory",
    # Scheduling and steps
    ("scheduler_cls", "additional_config"): "is not supported: the scheduler is Ringline's own, see {policy}",
    ("speculative_model",): "is not an option: {speculative_config} has a model, and says how drafts are made",
    ("attention_config", "ac"): "is not supported: {attention_backend} chooses the implementation of attention",
    ("kernel_config",): "is not supported: kernels are chosen for the device and the model",
    ("profiler_config",): "is not supported: docs/reference/metrics.md lists what is measured",
    # Requests and answers
    ("structured_outputs_config",): (
        "is not an option: llguidance holds answers to the form that requests ask for, such as json_schema"
    ),
    ("guided_decoding_disable_any_whitespace", "guided_decoding_disable_additional_properties"): (
        "is not an option: a request says what form its answer has, and whether it may have any whitespace"
    ),
    ("reasoning_config",): "is not supported: the model's chat template says how reasoning begins and ends",
    ("logits_processor_pattern", "io_processor_plugin"): _PROCESSORS,
    ("enable_return_routed_experts",): "is not supported: answers do not name the experts that computed them",
    ("enable_prompt_embeds", "enable_mm_embeds"): "is not supported: prompts are text or token ids",
    ("mm_encoder_only",): _ENCODES_ONLY,
}
"""Python names (short flags included) → the rest of a sentence that begins with the name. ``{name}`` is an option of
``EngineConfig``."""


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """An option of vLLM that is ignored with a warning: no token depends on it."""

    why: str
    """The rest of a sentence that begins "x has no effect: "."""
    takes_value: bool = True
    """Whether its flag does."""
    only: tuple[str, ...] = ()
    """The only values that are ignored; () for all."""
    otherwise: str = ""
    """What there is instead of others."""


_NO_CODE = (
    "no code from a checkpoint is executed; docs/reference/models.md lists the models that have an implementation here"
)
_KERNELS = "kernels, and how steps use them, are chosen for the device and the model"
_GRAPHS = "CUDA graphs are captured for fixed batch sizes, and nothing is compiled for a model"
_PREFILLS = "the tokens of all prompts in a step are limited together, by max_num_batched_tokens"
_V0 = "there is nothing here that it could set"
_PICTURES = "media are pictures, which are decoded here"
_SENT_ONCE = "an engine gets the pixels of a picture once, and keeps its embeddings by digest"
_DIVIDED = "ranks divide adapters as they divide the layers"
_ENCODER = "every rank of the first stage encodes each picture, by kernels chosen for the device and the model"

_WITHOUT_EFFECT: dict[tuple[str, ...], WithoutEffect] = {
    ("trust_remote_code",): WithoutEffect(_NO_CODE, takes_value=False),
    ("tokenizer_mode",): WithoutEffect(
        "tokenizer.json is read, or made of tekken.json or other files, and chats follow the checkpoint's template",
        only=("auto", "hf", "mistral"),
        otherwise="is not supported: the checkpoint's tokenizer.json counts, or is made of its other files; leave "
        "it out",
    ),
    ("config_format",): WithoutEffect(
        "config.json is read, and params.json is not",
        only=("auto", "hf", "mistral"),
        otherwise="is not supported: config.json is read; leave it out",
    ),
    ("convert",): WithoutEffect(
        "the checkpoint's class says what it computes",
        only=("auto", "none"),
        otherwise="is not an option: --runner pooling makes vectors of the hidden states of any decoder",
    ),
    ("max_logprobs",): WithoutEffect(
        "a request may ask for the log probabilities of up to 20 tokens",
        only=("20",),
        otherwise="is not an option: a request may ask for the log probabilities of up to 20 tokens",
    ),
    ("logprobs_mode",): WithoutEffect(
        "log probabilities are of the raw logits",
        only=("raw_logprobs",),
        otherwise="is not supported: log probabilities are of the raw logits, before penalties and temperature",
    ),
    ("allow_deprecated_quantization",): WithoutEffect("no format is refused for its age", takes_value=False),
    ("max_parallel_loading_workers",): WithoutEffect("every rank reads its own part of the weights at once"),
    ("safetensors_load_strategy",): WithoutEffect("weights are read as the device needs them"),
    ("use_tqdm_on_load",): WithoutEffect("the log says how far the start is", takes_value=False),
    # LoRA
    ("lora_dtype",): WithoutEffect(
        "adapters have the model's type",
        only=("auto",),
        otherwise="is not an option: adapters have the model's type, which --dtype sets",
    ),
    ("fully_sharded_loras",): WithoutEffect(_DIVIDED, takes_value=False),
    ("specialize_active_lora",): WithoutEffect(_KERNELS, takes_value=False),
    # Memory and cache
    ("swap_space",): WithoutEffect("a preempted sequence is computed again, nothing is swapped to the host"),
    ("preemption_mode",): WithoutEffect("a preempted sequence is computed again"),
    ("calculate_kv_scales",): WithoutEffect(
        "in 8 bits, each token and head of the KV cache has scales of its own", takes_value=False
    ),
    ("prefix_caching_hash_algo",): WithoutEffect("blocks of the KV cache are named by one hash"),
    ("disable_hybrid_kv_cache_manager", "kv_sharing_fast_prefill"): WithoutEffect(
        "layers share one plan of KV blocks", takes_value=False
    ),
    # Scheduling, steps and kernels
    ("max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold"): WithoutEffect(_PREFILLS),
    ("scheduler_reserve_full_isl",): WithoutEffect("a request waits until its prompt has room", takes_value=False),
    ("stream_interval",): WithoutEffect("the tokens of each step are sent when they are there"),
    ("num_scheduler_steps", "num_lookahead_slots", "scheduler_delay_factor"): WithoutEffect(_V0),
    ("tokenizer_pool_size", "tokenizer_pool_type", "tokenizer_pool_extra_config"): WithoutEffect(_V0),
    ("multi_step_stream_outputs",): WithoutEffect(_V0),
    ("disable_async_output_proc", "use_v2_block_manager"): WithoutEffect(_V0, takes_value=False),
    ("compilation_config", "cc", "O", "optimization_level", "cuda_graph_sizes"): WithoutEffect(_GRAPHS),
    ("cudagraph_capture_sizes", "max_cudagraph_capture_size"): WithoutEffect(_GRAPHS),
    ("max_seq_len_to_capture", "max_context_len_to_capture"): WithoutEffect(_GRAPHS),
    ("moe_backend", "linear_backend", "mamba_backend", "gdn_prefill_backend", "ir_op_priority"): WithoutEffect(
        _KERNELS
    ),
    ("performance_mode", "all2all_backend", "ubatch_size"): WithoutEffect(_KERNELS),
    ("dbo_decode_token_threshold", "dbo_prefill_token_threshold"): WithoutEffect(_KERNELS),
    ("enable_dbo", "disable_cascade_attn", "enable_flashinfer_autotune"): WithoutEffect(_KERNELS, takes_value=False),
    ("disable_custom_all_reduce",): WithoutEffect(
        "ranks gather what they have computed, and never add it up", takes_value=False
    ),
    ("enable_ep_weight_filter",): WithoutEffect("a rank reads only its own experts", takes_value=False),
    ("numa_bind",): WithoutEffect("numactl binds a process to cores and memory", takes_value=False),
    ("numa_bind_nodes", "numa_bind_cpus"): WithoutEffect("numactl binds a process to cores and memory"),
    # Images, audio and video
    ("media_io_kwargs", "video_pruning_rate"): WithoutEffect(_PICTURES),
    ("mm_processor_cache_gb", "mm_processor_cache_type", "mm_shm_cache_max_object_size_mb"): WithoutEffect(_SENT_ONCE),
    ("mm_tensor_ipc",): WithoutEffect(_SENT_ONCE),
    ("mm_encoder_tp_mode", "mm_encoder_attn_backend", "mm_encoder_attn_dtype"): WithoutEffect(_ENCODER),
    ("mm_encoder_fp8_scale_path", "mm_encoder_fp8_scale_save_path"): WithoutEffect(_ENCODER),
    ("mm_encoder_fp8_scale_save_margin",): WithoutEffect(_ENCODER),
    ("allowed_local_media_path",): WithoutEffect("pictures come with a request, and are not read from files here"),
    ("allowed_media_domains",): WithoutEffect("--allowed-media-hosts says where the gateway gets pictures from"),
    ("interleave_mm_strings",): WithoutEffect("a picture's place in a message is where its part is", takes_value=False),
    ("skip_mm_profiling",): WithoutEffect("memory is measured with a picture", takes_value=False),
    ("disable_mm_preprocessor_cache",): WithoutEffect(_SENT_ONCE, takes_value=False),
    ("disable_chunked_mm_input",): WithoutEffect(
        "a step may end inside a picture unless its tokens see each other", takes_value=False
    ),
    ("enable_multimodal_encoder_data_parallel",): WithoutEffect(_ENCODER, takes_value=False),
    # Requests, answers and logs
    ("logits_processors",): WithoutEffect(
        "a request that has ngram_size and window_size asks for it",
        only=("vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor",),
        otherwise=_PROCESSORS,
    ),
    ("guided_decoding_backend",): WithoutEffect("llguidance holds answers to the form that requests ask for"),
    ("guided_decoding_disable_fallback",): WithoutEffect(
        "llguidance holds answers to the form that requests ask for", takes_value=False
    ),
    ("disable_log_stats", "aggregate_engine_logging", "enable_logging_iteration_details"): WithoutEffect(
        "statistics are metrics; a busy server logs a line now and then, see --load-log-interval", takes_value=False
    ),
}

WITHOUT_EFFECT = {name: entry for names, entry in _WITHOUT_EFFECT.items() for name in names}
"""By Python name (short flags included)."""


def instead_of_vllm_options(spelled: Callable[[str], str]) -> dict[str, str]:
    """Python name → the rest of a sentence that begins with the option: "is not supported yet: …".

    ``spelled`` formats the name of one of our options for the reader, such as ``dtype`` or ``--dtype``.
    """
    sections = [section.default_factory for section in fields(EngineConfig)]
    own = {name: spelled(name) for section in sections for name in options_of(section)}  # type: ignore[arg-type]
    called = {name: f"is called {own[option]} here" for name, option in CALLED.items()}
    return called | {name: text.format_map(own) for names, text in _INSTEAD.items() for name in names}
