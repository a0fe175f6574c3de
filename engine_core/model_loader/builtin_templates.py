"""Chat templates of models whose publishers give none, as their model cards write prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_core.model_loader.json_files import read_object

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


def has_pair_template(model: Path) -> bool:
    """Whether the checkpoint in the directory ``model`` has a template for a query and a document, or gets one here."""
    return False


def builtin_template(model: Path) -> bytes | None:
    """The template for the checkpoint in the directory ``model``; None if there is none. Raises ``CheckpointError``."""
    if not model.is_dir():
        return None
    named = read_object(model / "config.json", optional=True).get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    template = _TEMPLATES.get(first) if isinstance(first, str) else None
    return None if template is None else template.encode()
