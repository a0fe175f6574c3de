"""Flags of llama.cpp's llama-server that ours lacks.

When you add a flag here under llama-server's name, delete its entry.
"""

from __future__ import annotations

from services.common.config.foreign_flags import Alias, Answer, NoEffect, table

_REQUEST = "is not an option: each request can set it, see docs/reference/openai.md"
_DEFAULT = "is not an option: a request can set it, and --override-generation-config has the defaults of requests"
_NO_SAMPLER = "is not supported: requests have temperature, top_p, top_k, min_p, penalties and logit_bias"
_CONTEXT = (
    "is not supported: positions are scaled as the metadata of a GGUF file say, or config.json's rope_parameters; "
    "change a copy of the checkpoint"
)
_WHOLE = "is not supported: the weights must fit on the device; --quantization makes them smaller"
_LORA = "is called --lora-modules here, with --enable-lora, and takes adapters in PEFT's format as name=directory"
_DRAFT_MODEL = (
    """is written --speculative-config '{"method": "draft_model", "model": "…"}' here, with a path or hub id"""
)
_DRAFT_METHOD = """is written --speculative-config '{"method": "…"}' here, with ngram, draft_model, mtp or eagle3"""
_MOST_DRAFTS = "is written --speculative-config.num_speculative_tokens N here, beside its method"
_RUN = "is written --speculative-config.prompt_lookup_max N here, beside --speculative-config.method ngram"
_LOOKED_UP = "is not supported: --speculative-config.method ngram looks runs up in the tokens of requests"
_DECIDED = "is not an option: --speculative-config sets the most drafts, and how many pay is measured"
_DRAFT_PLACE = "is not an option: drafts are computed beside the model that --speculative-config serves"
_PROJECTOR = "is not supported: models in GGUF files take text alone; pictures need the checkpoint in safetensors"
_VECTORS = "is not an option: --pooler-config has pooling_type and normalize"
_ONE_MODEL = "is not supported: one `ringline serve` serves one model"
_OWN_PAGE = "is not an option: the gateway's chat page is as it is; --no-http leaves out the gateway"
_OWN_TOOLS = "is not supported: your program runs the tools that a model calls"
_NAMED = "is not an option: name the model, such as org/name:Q4_K_M on the hub"
_ORIGINS = "is not needed: pages of --cors-origins may send any header, and tokens are sent as one"
_DEVICES = "is not an option: --tensor-parallel-size and --pipeline-parallel-size divide a model evenly"
_MEMORY = "weights are read as the device needs them"
_CORES = "taskset and numactl bind a process to cores, --num-threads says how many compute"
_SLOTS = "sequences share one KV cache, and equal beginnings of prompts are computed once"
_BATCHED = "requests are always batched, step by step"
_LOG_FORM = "--log-format is the form of the log"
_MEDIA = "models in GGUF files take text alone, and there is no video"
_ON_OFF = ("on", "off", "auto", "1", "0", "true", "false")

LLAMA_SERVER_FLAGS: dict[str, Alias | NoEffect | Answer] = table(
    {
        # Called otherwise
        ("m", "hf", "hfr", "hf_repo"): Alias("model"),
        ("a", "alias"): Alias("served_model_name", others="model_aliases", by_commas=True),
        ("c", "ctx_size"): Alias("max_model_len", {"0": None}),
        ("np", "parallel"): Alias("max_num_seqs", {"-1": None}),
        ("b", "batch_size"): Alias("max_num_batched_tokens"),
        ("t", "threads"): Alias("num_threads", {"-1": None}),
        ("dev",): Alias("device", {"none": "cpu"}),
        ("embedding", "embeddings", "rerank", "reranking"): Alias("runner", value="pooling"),
        ("ctk", "cache_type_k", "ctv", "cache_type_v"): Alias("kv_cache_dtype", {"q8_0": "int8"}),
        ("cache_prompt",): Alias("enable_prefix_caching"),
        ("chat_template_file",): Alias("chat_template"),
        ("ssl_key_file",): Alias("tls_key_file"),
        ("ssl_cert_file",): Alias("tls_cert_file"),
        ("to", "timeout"): Alias("stall_timeout"),
        ("log_jsonl",): Alias("log_format", value="json"),
        ("no_log_jsonl",): Alias("log_format", value="console"),
        ("v", "verbose", "log_verbose"): Alias("log_level", value="debug"),
        ("lv", "verbosity", "log_verbosity"): Alias(
            "log_level", {"0": "error", "1": "error", "2": "warning", "3": "info", "4": "debug", "5": "debug"}
        ),
        # Without effect
        ("tb", "threads_batch", "threads_http"): NoEffect("--num-threads is for all steps", takes_value=True),
        ("C", "cpu_mask", "Cr", "cpu_range", "cpu_strict", "prio", "poll", "numa"): NoEffect(_CORES, takes_value=True),
        ("Cb", "cpu_mask_batch", "Crb", "cpu_range_batch", "cpu_strict_batch", "prio_batch", "poll_batch"): NoEffect(
            _CORES, takes_value=True
        ),
        ("ub", "ubatch_size"): NoEffect("a step is not divided: -b limits its tokens", takes_value=True),
        ("fa", "flash_attn"): NoEffect("attention never needs the memory of all scores", only=_ON_OFF),
        ("ngl", "gpu_layers", "n_gpu_layers"): NoEffect("all layers are on --device", takes_value=True),
        ("fit",): NoEffect("--gpu-memory-utilization limits the memory", only=_ON_OFF),
        ("fitt", "fit_target", "fitc", "fit_ctx"): NoEffect(
            "--gpu-memory-utilization limits the memory", takes_value=True
        ),
        ("kvo", "kv_offload", "nkvo", "op_offload"): NoEffect("the KV cache is on --device"),
        ("repack", "nr", "no_host", "mlock", "mmap", "dio", "direct_io", "ndio"): NoEffect(_MEMORY),
        ("lm", "load_mode", "lzm", "lazy_mode", "dt", "defrag_thold"): NoEffect(_MEMORY, takes_value=True),
        ("check_tensors",): NoEffect("tensors are checked as they are read"),
        ("perf",): NoEffect("docs/reference/metrics.md lists what is measured"),
        ("warmup",): NoEffect("the engine warms up before it serves"),
        ("e", "escape"): NoEffect("prompts come from requests, and are taken as they are"),
        ("cb", "cont_batching", "nocb"): NoEffect(_BATCHED),
        ("kvu", "kv_unified", "no_kvu", "cache_idle_slots", "no_slots", "swa_full"): NoEffect(_SLOTS),
        ("cache_reuse", "cram", "cache_ram", "sps", "slot_prompt_similarity"): NoEffect(_SLOTS, takes_value=True),
        ("ctxcp", "ctx_checkpoints", "swa_checkpoints", "cms", "checkpoint_min_step"): NoEffect(
            _SLOTS, takes_value=True
        ),
        ("no_context_shift",): NoEffect("an answer ends where the context does"),
        ("bs", "backend_sampling"): NoEffect("tokens are chosen where the model is computed"),
        ("log_prefix", "log_timestamps"): NoEffect(_LOG_FORM),
        ("log_colors",): NoEffect(_LOG_FORM, only=_ON_OFF),
        ("jinja",): NoEffect("chat templates are Jinja's"),
        ("no_skip_chat_parsing",): NoEffect("answers are divided into reasoning, calls and text"),
        ("reasoning_format",): NoEffect(
            "reasoning is reasoning_content",
            takes_value=True,
            only=("auto", "deepseek"),
            otherwise="is not supported: reasoning is never a part of the content; a request may leave it out",
        ),
        ("rea", "reasoning"): NoEffect(
            "the chat template decides",
            takes_value=True,
            only=("auto",),
            otherwise="is not an option: a request has chat_template_kwargs, such as enable_thinking",
        ),
        ("reasoning_budget",): NoEffect(
            "reasoning has no limit of its own",
            takes_value=True,
            only=("-1",),
            otherwise="is not an option: a request turns reasoning off by enable_thinking false in "
            "chat_template_kwargs, and max_tokens limits reasoning and answer together",
        ),
        ("sse_ping_interval",): NoEffect("silent streams are kept open by comments", takes_value=True),
        ("tags",): NoEffect("a model has no tags", takes_value=True),
        ("ui", "webui"): NoEffect("the gateway has a chat page"),
        ("no_agent", "no_ag", "no_ui_mcp_proxy", "no_webui_mcp_proxy"): NoEffect("the server runs no tools"),
        ("mmproj_auto", "no_mmproj", "mmproj_offload"): NoEffect(_MEDIA),
        ("image_min_tokens", "image_max_tokens", "mtmd_batch_max_tokens", "video_fps"): NoEffect(
            _MEDIA, takes_value=True
        ),
        ("mmdev", "mmproj_device", "video_timestamp_interval", "video_ffmpeg_dir"): NoEffect(_MEDIA, takes_value=True),
        # Answered: what is served
        ("mu", "model_url", "dr", "docker_repo"): "is not supported: download the file, and give its path",
        ("hff", "hf_file"): "is not an option: name the file with its repository, such as org/name/file.gguf",
        ("hft",): "is not an option: set the environment variable HF_TOKEN",
        ("offline",): "is not an option: set the environment variable HF_HUB_OFFLINE to 1",
        ("cl", "cache_list"): "is not supported: the hub's own command `hf cache ls` lists them",
        ("embd_gemma_default",): _NAMED,
        ("fim_qwen_1.5b_default", "fim_qwen_3b_default", "fim_qwen_7b_default", "fim_qwen_7b_spec"): _NAMED,
        ("fim_qwen_14b_spec", "fim_qwen_30b_default", "gpt_oss_20b_default", "gpt_oss_120b_default"): _NAMED,
        ("vision_gemma_4b_default", "vision_gemma_12b_default"): _NAMED,
        ("models_dir", "models_preset", "models_max", "models_autoload"): _ONE_MODEL,
        ("override_kv",): "is not supported: the file's metadata count",
        ("rope_scale", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor"): _CONTEXT,
        ("rope_scaling", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"): _CONTEXT,
        ("lora", "lora_scaled", "lora_init_without_apply"): _LORA,
        ("control_vector", "control_vector_scaled", "control_vector_layer_range"): (
            "is not supported: the weights are used as the checkpoint has them"
        ),
        ("mm", "mmproj", "mmu", "mmproj_url"): _PROJECTOR,
        ("media_path",): "is not an option: pictures come within requests, or from the gateway's --allowed-media-hosts",
        ("pooling", "embd_normalize"): _VECTORS,
        # Answered: devices and memory
        ("sm", "split_mode", "ts", "tensor_split"): _DEVICES,
        ("mg", "main_gpu"): "is not an option: set the environment variable CUDA_VISIBLE_DEVICES",
        ("list_devices",): "is not supported: `nvidia-smi -L` lists them",
        ("rpc",): "is not an option: --distributed-executor-backend ray places ranks on several hosts",
        ("ot", "override_tensor", "cmoe", "cpu_moe", "ncmoe", "n_cpu_moe", "moe_cache_mib", "ncffn"): _WHOLE,
        ("n_cpu_ffn",): _WHOLE,
        ("kv_unified_per_slot",): "is not an option: --max-model-len is the limit of each sequence",
        ("slot_save_path",): "is not supported: the KV cache is not kept on disk",
        ("keep", "context_shift"): "is not supported: an answer ends where the context does",
        ("sleep_idle_seconds",): "is not supported: stop the engine to free its memory",
        # Answered: sampling
        ("n", "predict", "n_predict"): "is not an option: a request has max_tokens (of vLLM's flags, -n is --nnodes)",
        ("s",): "is not an option: a request has a seed",
        ("temp", "temperature", "top_k", "top_p", "min_p", "repeat_penalty"): _DEFAULT,
        ("presence_penalty", "frequency_penalty", "l", "logit_bias", "ignore_eos", "sp", "special"): _REQUEST,
        ("r", "reverse_prompt"): "is not an option: a request has stop strings (of vLLM's flags, -r is --node-rank)",
        ("grammar", "grammar_file", "j", "json_schema", "jf", "json_schema_file"): _REQUEST,
        ("samplers", "sampler_seq", "sampling_seq", "top_nsigma", "top_n_sigma", "xtc_probability"): _NO_SAMPLER,
        ("xtc_threshold", "typical", "typical_p", "repeat_last_n", "dry_multiplier", "dry_base"): _NO_SAMPLER,
        ("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breaker", "adaptive_target"): _NO_SAMPLER,
        ("adaptive_decay", "dynatemp_range", "dynatemp_exp", "mirostat", "mirostat_lr", "mirostat_ent"): _NO_SAMPLER,
        # Answered: drafts
        ("spec_draft_model", "md", "model_draft", "spec_draft_hf", "hfd", "hfrd", "hf_repo_draft"): _DRAFT_MODEL,
        ("spec_type", "spec_default"): _DRAFT_METHOD,
        ("spec_draft_n_max", "draft", "draft_n", "draft_max"): _MOST_DRAFTS,
        ("spec_ngram_mod_n_max", "spec_ngram_simple_size_m", "spec_ngram_map_k_size_m"): _MOST_DRAFTS,
        ("spec_ngram_map_k4v_size_m", "spec_ngram_size_m"): _MOST_DRAFTS,
        ("spec_ngram_mod_n_match", "spec_ngram_simple_size_n", "spec_ngram_map_k_size_n"): _RUN,
        ("spec_ngram_map_k4v_size_n", "spec_ngram_size_n"): _RUN,
        ("lcs", "lookup_cache_static", "lcd", "lookup_cache_dynamic"): _LOOKED_UP,
        ("spec_ngram_simple_min_hits", "spec_ngram_map_k_min_hits", "spec_ngram_map_k4v_min_hits"): _LOOKED_UP,
        ("spec_ngram_min_hits",): _LOOKED_UP,
        ("spec_draft_n_min", "spec_ngram_mod_n_min", "draft_min", "draft_n_min"): _DECIDED,
        ("spec_draft_p_split", "draft_p_split", "spec_draft_p_min", "draft_p_min"): _DECIDED,
        ("spec_synth_len", "spec_synth_rates", "spec_draft_sampling", "spec_draft_backend_sampling"): _DECIDED,
        ("spec_draft_type_k", "ctkd", "cache_type_k_draft", "spec_draft_type_v", "ctvd"): _DRAFT_PLACE,
        ("cache_type_v_draft", "spec_draft_threads", "td", "threads_draft", "spec_draft_threads_batch"): _DRAFT_PLACE,
        ("tbd", "threads_batch_draft", "spec_draft_cpu_mask", "Cd", "cpu_mask_draft"): _DRAFT_PLACE,
        ("spec_draft_cpu_range", "Crd", "cpu_range_draft", "spec_draft_cpu_strict", "cpu_strict_draft"): _DRAFT_PLACE,
        ("spec_draft_prio", "prio_draft", "spec_draft_poll", "poll_draft"): _DRAFT_PLACE,
        ("spec_draft_cpu_mask_batch", "Cbd", "cpu_mask_batch_draft", "spec_draft_cpu_strict_batch"): _DRAFT_PLACE,
        ("cpu_strict_batch_draft", "spec_draft_prio_batch", "prio_batch_draft"): _DRAFT_PLACE,
        ("spec_draft_poll_batch", "poll_batch_draft", "spec_draft_override_tensor", "otd"): _DRAFT_PLACE,
        ("override_tensor_draft", "spec_draft_cpu_moe", "cmoed", "cpu_moe_draft"): _DRAFT_PLACE,
        ("spec_draft_n_cpu_moe", "spec_draft_ncmoe", "ncmoed", "n_cpu_moe_draft"): _DRAFT_PLACE,
        ("spec_draft_device", "devd", "device_draft", "spec_draft_ngl", "ngld"): _DRAFT_PLACE,
        ("gpu_layers_draft", "n_gpu_layers_draft"): _DRAFT_PLACE,
        # Answered: the server
        ("usage", "completion_bash"): "is not supported: --help shows the common options, --help-all all of them",
        ("version",): "is not an option of a command: `ringline --version` shows it",
        ("api_key_file",): "is not supported: `ringline token` makes tokens, --auth-token-file accepts them",
        ("log_disable",): "is not supported: --log-level error logs failures alone",
        ("log_file",): "is not supported: the log is the standard error stream, which your shell can redirect",
        ("log_prompts_dir",): "is not supported: requests are not logged",
        ("reuse_port",): "is not supported: a port is one process's; run several behind a proxy",
        ("path", "api_prefix"): "is not supported: a proxy takes its own prefix off a path, and serves your files",
        ("cors_methods", "cors_headers", "cors_credentials"): _ORIGINS,
        ("no_ui", "no_webui", "ui_config", "webui_config", "ui_config_file", "webui_config_file"): _OWN_PAGE,
        ("ui_mcp_proxy", "webui_mcp_proxy", "ag", "agent"): _OWN_TOOLS,
        ("tools", "tools_runtime", "mcp_servers_config", "mcp_servers_json"): _OWN_TOOLS,
        ("props", "slots"): "is not supported: `ringline status` and the metrics say what runs",
        ("chat_template_kwargs", "reasoning_effort"): "is not an option: a request has chat_template_kwargs",
        ("reasoning_budget_message", "reasoning_preserve", "spm_infill"): (
            "is not supported: the model's chat template says how a conversation is written"
        ),
        ("prefill_assistant",): "is not an option: a request has continue_final_message",
        ("no_jinja", "skip_chat_parsing"): "is not supported: chats are rendered and read by the model's chat template",
    }
)
"""By name, as in ``foreign_flags``."""
