"""Chat templates of models whose publishers give none, as their model cards write prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_core.errors import UnsupportedModelError
from engine_core.model_loader.json_files import read_object
from engine_core.pooling.config import transformer_fields

_DEEPSEEK_OCR = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message['content'] is string -%}
        {{- message['content'] -}}
    {%- else -%}
        {%- set pictures = message['content'] | selectattr('type', 'equalto', 'image') | list -%}
        {%- set texts = message['content'] | rejectattr('type', 'equalto', 'image') | list -%}
        {%- for part in pictures + texts -%}
            {{- '<image>' if part['type'] == 'image' else part['text'] -}}
            {%- if not loop.last -%}
                {{- '\\n' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endfor -%}
"""
"""Nothing marks whose turn it is. Pictures and texts of a message stand on lines of their own, pictures first: the
model has learned no other order, and clients send both.
"""
_QWEN3_RERANKER = """\
{%- set parts = namespace(query='', document='') -%}
{%- set parts.instruction = 'Given a web search query, retrieve relevant passages that answer the query' -%}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}
        {%- set parts.instruction = message['content'] -%}
    {%- elif message['role'] == 'query' -%}
        {%- set parts.query = message['content'] -%}
    {%- elif message['role'] == 'document' -%}
        {%- set parts.document = message['content'] -%}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>system\n' -}}
{{- 'Judge whether the Document meets the requirements based on the Query and the Instruct provided. ' -}}
{{- 'Note that the answer can only be "yes" or "no".<|im_end|>\n' -}}
{{- '<|im_start|>user\n<Instruct>: ' + parts.instruction + '\n<Query>: ' + parts.query -}}
{{- '\n<Document>: ' + parts.document + '<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n' -}}
"""
"""The prompt of Qwen3-Reranker's model card. Its checkpoints have the template of chats."""
_PAIR_ROLES = b"query", b"document"
"""Words that a template for pairs has."""
_MOST_OF_MODULES = 2**16
"""Bytes that are read of modules.json, which has some hundreds."""
_OF_CUTS = "restore_suffix"
"""No variable of templates: cuts leave the end of a chat where it is."""
_TEMPLATES = dict.fromkeys(
    ("DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration"), _DEEPSEEK_OCR
)
"""By the first architecture in config.json."""


def has_template(files: Mapping[str, bytes]) -> bool:
    """Whether a tokenizer's files have a chat template."""
    if any(name.endswith(".jinja") for name in files):
        return True
    try:
        declared: Any = json.loads(files.get("tokenizer_config.json", b"{}"))
    except (ValueError, RecursionError):  # whoever reads the file says so
        return True
    return isinstance(declared, dict) and declared.get("chat_template") is not None


def is_of_pairs(files: Mapping[str, bytes]) -> bool:
    """Whether a tokenizer's files have a template for a query and a document."""
    templates = [data for name, data in files.items() if name.endswith(".jinja") or name == "tokenizer_config.json"]
    return any(all(role in data for role in _PAIR_ROLES) for data in templates)


def has_logit_score(model: Path) -> bool:
    """Whether the checkpoint in the directory ``model`` has sentence-transformers' layout of a model whose tokens are
    labels: pairs are shown to it by its own template, whatever that does with their roles.
    """
    file = model / "modules.json"
    return file.is_file() and b"LogitScore" in file.read_bytes()[:_MOST_OF_MODULES]


def template_arguments(model: Path) -> bytes:
    """What sets the variables with which sentence-transformers shows pairs, before the template. Raises
    ``CheckpointError``.
    """
    file, of_transformer = transformer_fields(model, read_object)
    fields = of_transformer.get("processing_kwargs") or {}
    given = fields.get("chat_template") if isinstance(fields, dict) else None
    arguments = {} if not isinstance(given, dict) else {key: given[key] for key in given if key != _OF_CUTS}
    for name, value in arguments.items():
        if not name.isidentifier() or not isinstance(value, bool | int | str):
            raise UnsupportedModelError(
                f"{file}: chat_template has {name}={value!r}, which is not supported: "
                "expected true, false, a number or a text"
            )
    return "".join(f"{{%- set {name} = {_literal(value)} -%}}" for name, value in arguments.items()).encode()


def _literal(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def pair_template(model: Path, *, scores_tokens: bool) -> bytes | None:
    """The template for pairs of the checkpoint in the directory ``model``; None if there is none.

    ``scores_tokens``: its tokens are labels. Raises ``CheckpointError``.
    """
    fields = read_object(model / "config.json", optional=True) if model.is_dir() else {}
    if fields.get("model_type") != "qwen3":
        return None
    is_classifier = fields.get("architectures") == ["Qwen3ForSequenceClassification"]
    has_one_label = len(fields.get("id2label") or ()) == 1 or fields.get("num_labels") == 1
    return _QWEN3_RERANKER.encode() if scores_tokens or (is_classifier and has_one_label) else None


def has_pair_template(model: Path) -> bool:
    """Whether the checkpoint in the directory ``model`` has a template for a query and a document, or gets one here."""
    names = "tokenizer_config.json", "chat_template.jinja"
    files = {name: (model / name).read_bytes() for name in names if (model / name).is_file()}
    return is_of_pairs(files) or pair_template(model, scores_tokens=has_logit_score(model)) is not None


def builtin_template(model: Path) -> bytes | None:
    """The template for the checkpoint in the directory ``model``; None if there is none. Raises ``CheckpointError``."""
    if not model.is_dir():
        return None
    named = read_object(model / "config.json", optional=True).get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    template = _TEMPLATES.get(first) if isinstance(first, str) else None
    return None if template is None else template.encode()
