"""The chat template of --chat-template: a file, or the template's own text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine_core.config import ModelConfig
from engine_core.errors import ConfigError

_FILE = "chat_template.jinja"
_ADDITIONAL = "additional_chat_templates/"
_MARKS = ("{{", "{%")


def with_template(files: Mapping[str, bytes], config: ModelConfig) -> dict[str, bytes]:
    """``files`` of a tokenizer, with the option's template instead of theirs."""
    template = read_template(config)
    if template is None:
        return dict(files)
    return {name: data for name, data in files.items() if not name.startswith(_ADDITIONAL)} | {_FILE: template}


def read_template(config: ModelConfig) -> bytes | None:
    """The option's template; None without it. Raises ``ConfigError`` for a file that cannot be read."""
    given = config.chat_template
    if given is None:
        return None
    if any(mark in given for mark in _MARKS):
        return given.encode()
    try:
        return Path(given).read_bytes()
    except OSError as error:
        problem = f"a file that can be read, or the text of a template ({error.strerror})"
        raise ConfigError("chat_template", given, problem) from None
