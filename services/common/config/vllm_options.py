"""Options of vLLM's server that ours lacks, with replacements. Those of its engine are in ``engine_core.vllm_options``.

Delete an option's entry when adding it here, under vLLM's name or another.
"""

from __future__ import annotations

_TOOLS = "is not needed: calls are parsed in the format that the model's chat template writes"
_TEMPLATE = "is not supported: the checkpoint's chat template is used; put another into its chat_template.jinja"
_NOT_LOGGED = "is not needed: requests are not logged"

_INSTEAD: dict[tuple[str, ...], str] = {
    ("api_key",): "is not supported: `ringline token` makes tokens, `ringline serve --auth-token-file` accepts them",
    ("ssl_keyfile",): "is called --tls-key-file here",
    ("ssl_certfile",): "is called --tls-cert-file here",
    ("ssl_ca_certs",): "is called --tls-ca-file here; --tls-client-auth require makes clients show a certificate",
    ("ssl_cert_reqs",): "is called --tls-client-auth here",
    ("enable_ssl_refresh",): "is not needed: certificates are read again when their files change",
    ("uvicorn_log_level", "disable_uvicorn_access_log", "log_config_file"): "is not supported: see --log-level",
    ("allowed_origins",): "is called --cors-origins here",
    ("allow_credentials", "allowed_methods", "allowed_headers"): (
        "is not needed: pages of --cors-origins may send any header, and tokens are sent as one"
    ),
    ("root_path",): "is not supported: a proxy takes its own prefix off a path before it passes a request on",
    ("middleware",): "is not supported: put what your requests need into a proxy before the gateway",
    ("disable_fastapi_docs",): "is not needed: the gateway serves no such pages",
    ("h11_max_incomplete_event_size", "h11_max_header_count"): "is not an option: the gateway takes a head of 64 KiB",
    ("api_server_count", "asc", "headless", "disable_frontend_multiprocessing"): (
        "is not supported: for several front ends run `ringline processor` and `ringline gateway` several times"
    ),
    ("config",): "is not supported: options are flags or RINGLINE_… variables",
    ("enable_auto_tool_choice", "tool_call_parser", "tool_parser_plugin"): _TOOLS,
    ("tool_server",): "is not supported: your program runs the tools that a model calls",
    ("chat_template", "chat_template_content_format", "trust_request_chat_template", "response_role"): _TEMPLATE,
    ("enable_log_requests", "disable_log_requests", "max_log_len"): _NOT_LOGGED,
}

INSTEAD_OF_VLLM_OPTIONS: dict[str, str] = {name: text for names, text in _INSTEAD.items() for name in names}
"""Keyed by Python name: the rest of a sentence that begins with the flag, "is called --tls-key-file here"."""
