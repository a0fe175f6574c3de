"""Flags of vLLM's server that ours lacks. Those of its engine are in ``engine_core.vllm_options``.

When you add a flag here under vLLM's name, delete its entry.
"""

from __future__ import annotations

from services.common.config.foreign_flags import Alias, Answer, NoEffect, table

_TOOLS = "calls are parsed in the format that the model's chat template writes"
_DIVIDED = "answers are divided into reasoning, calls and text as the model's chat template writes them"
_NOT_LOGGED = "requests are not logged"
_ONE_LOG = "--log-level is that of all logs, and requests are not logged"
_PLUGIN = "is not supported: no code of yours or of a checkpoint is executed"
_FINGERPRINT = "is not supported: answers have no fingerprint of the server"
_ORIGINS = "is not needed: pages of --cors-origins may send any header, and tokens are sent as one"
_MEASURED = "is not an option: docs/reference/metrics.md lists what is measured"
_FRONT_END = "the gateway is a process of its own, apart from the processor and the engine"
_OWN_MODEL = "is not supported: the model's chat template says how it writes"

TOOL_CALL_PARSERS = {
    "deepseek_v3": "deepseek",
    "deepseek_v31": "deepseek",
    "deepseek_v4": "deepseek_v32",
    "ernie45": "hermes",
    "glm47": "glm45",
    "granite-20b-fc": "auto",
    "granite4": "hermes",
    "internlm": "internlm2",
    "jamba": "auto",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "longcat": "auto",
    "minimax": "minimax_m1",
    "openai": "harmony",
    "qwen3_xml": "qwen3_coder",
    "step3": "auto",
    "step3p5": "qwen3_coder",
}
"""vLLM's names of formats that have another name here, or none: then the chat template's counts."""
REASONING_PARSERS = {
    "deepseek_r1": "think",
    "deepseek_v3": "think",
    "ernie45": "think",
    "glm45": "think",
    "granite": "auto",
    "holo2": "think",
    "hunyuan_a13b": "think",
    "identity": "none",
    "kimi_k2": "think",
    "minimax_m2": "think",
    "minimax_m2_append_think": "think",
    "nemotron_v3": "think",
    "olmo3": "think",
    "openai_gptoss": "harmony",
    "qwen3": "think",
    "step3": "think",
    "step3p5": "think",
}
"""Likewise, of reasoning."""

VLLM_FLAGS: dict[str, Alias | NoEffect | Answer] = table(
    {
        # Called otherwise
        ("grpc",): Alias("vllm_engine_api"),
        ("ssl_keyfile",): Alias("tls_key_file"),
        ("ssl_certfile",): Alias("tls_cert_file"),
        ("ssl_ca_certs",): Alias("tls_ca_file"),
        ("ssl_cert_reqs",): Alias("tls_client_auth", {"0": "none", "2": "require"}),
        ("shutdown_timeout",): Alias("drain_grace"),
        ("api_server_count", "asc"): Alias("num_gateways"),
        # Values that are called otherwise, or several
        ("allowed_media_domains",): Alias("allowed_media_hosts", others="allowed_media_hosts"),
        ("lora_modules",): Alias("lora_modules", others="lora_modules"),
        ("generation_config",): Alias("generation_config", {"vllm": "none"}),
        ("served_model_name",): Alias("served_model_name", others="model_aliases"),
        ("dtype",): Alias("dtype", {"half": "float16", "float": "float32"}),
        ("model_impl",): Alias("model_impl", {"vllm": "ringline"}),
        # Without effect
        ("uvicorn_log_level", "disable_access_log_for_endpoints"): NoEffect(_ONE_LOG, takes_value=True),
        ("disable_uvicorn_access_log",): NoEffect(_ONE_LOG),
        ("enable_log_requests", "disable_log_requests", "enable_log_outputs", "enable_log_deltas"): NoEffect(
            _NOT_LOGGED
        ),
        ("max_log_len",): NoEffect(_NOT_LOGGED, takes_value=True),
        ("disable_frontend_multiprocessing",): NoEffect(_FRONT_END),
        ("log_error_stack",): NoEffect("the log has the reason of every failure"),
        ("enable_auto_tool_choice",): NoEffect(_TOOLS),
        ("tool_call_parser",): Alias("tool_call_parser", TOOL_CALL_PARSERS),
        ("exclude_tools_when_tool_choice_none",): NoEffect("with tool_choice none, the model is told of no tools"),
        ("enable_reasoning",): NoEffect(_DIVIDED),
        ("reasoning_parser",): Alias("reasoning_parser", REASONING_PARSERS),
        ("chat_template_content_format",): NoEffect(
            "the chat template's own form of content is found", takes_value=True, only=("auto",), otherwise=_OWN_MODEL
        ),
        ("response_role",): NoEffect(
            "the role of answers is assistant", takes_value=True, only=("assistant",), otherwise=_OWN_MODEL
        ),
        ("enable_prompt_tokens_details",): NoEffect("usage always says how many prompt tokens were cached"),
        ("enable_request_id_headers",): NoEffect("every answer has the header X-Request-Id"),
        ("enable_server_load_tracking",): NoEffect("the metrics say how many requests run and wait"),
        ("enable_ssl_refresh",): NoEffect("certificates are read again when their files change"),
        ("disable_fastapi_docs",): NoEffect("the gateway serves no such pages"),
        ("fail_on_environ_validation",): NoEffect("an unknown RINGLINE_… variable is a warning in the log"),
        ("show_hidden_metrics_for_version",): NoEffect("no metric is hidden", takes_value=True),
        # Answered
        ("ssl_ciphers",): "is not an option: TLS has its library's own choice of ciphers",
        ("log_config_file",): "is not supported: see --log-level and --log-format",
        ("allowed_origins",): "is called --cors-origins here, and takes a list that is separated by commas",
        ("allow_credentials", "allowed_methods", "allowed_headers"): _ORIGINS,
        ("root_path",): "is not supported: a proxy takes its own prefix off a path before it passes a request on",
        ("middleware",): "is not supported: put what your requests need into a proxy before the gateway",
        ("enable_offline_docs",): "is not supported: docs/reference/openai.md describes the API",
        ("h11_max_incomplete_event_size", "h11_max_header_count"): (
            "is not an option: the gateway takes a head of 64 KiB"
        ),
        ("headless",): "is not an option: run `ringline engine`, which has no front end",
        ("renderer_num_workers",): "is not an option: a processor tokenizes beside its other work; run several of them",
        ("tokens_only",): "is not an option: clients send token ids by gRPC, see docs/explanation/protocol.md",
        ("config",): "is not supported: options are flags or RINGLINE_… variables",
        ("tool_parser_plugin", "reasoning_parser_plugin"): _PLUGIN,
        ("tool_server",): "is not supported: your program runs the tools that a model calls",
        ("trust_request_chat_template",): "is not supported: requests are rendered by the model's template alone",
        ("default_chat_template_kwargs",): "is not an option: a request has chat_template_kwargs",
        ("return_tokens_as_token_ids",): "is not an option: a request may ask for it by the same name",
        ("enable_force_include_usage",): "is not an option: a request asks for it by stream_options",
        ("enable_tokenizer_info_endpoint",): "is not supported: the gateway has /tokenize and /detokenize",
        ("enable_per_request_metrics", "collect_detailed_traces", "kv_cache_metrics"): _MEASURED,
        ("kv_cache_metrics_sample", "cudagraph_metrics", "enable_mfu_metrics"): _MEASURED,
        ("enable_layerwise_nvtx_tracing",): _MEASURED,
        ("cohere_is_reasoning_model", "cohere_format"): "is not supported: there is no API of Cohere's",
        ("fingerprint_mode", "fingerprint_value"): _FINGERPRINT,
        ("enable_flash_late_interaction",): "is not supported: models generate text; there are no scores",
    }
)
"""By name, as in ``foreign_flags``."""
