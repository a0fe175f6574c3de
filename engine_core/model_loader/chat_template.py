"""The chat template of --chat-template: a file, or the template's own text; else the checkpoint's, else Ringline's."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader.builtin_templates import (
    builtin_template,
    has_logit_score,
    has_template,
    is_of_pairs,
    pair_template,
    template_arguments,
)
from engine_core.model_loader.location import find_checkpoint
from engine_core.pooling.options import read_pooler_options
from text_core.tokenizer_files import load_json

_FILE = "chat_template.jinja"
_ADDITIONAL = "additional_chat_templates/"
_MOST_BYTES = 2**20
"""The longest published templates have some 30,000."""
_MARKS = ("{{", "{%")


def with_template(files: Mapping[str, bytes], config: ModelConfig) -> dict[str, bytes]:
    """``files`` of a tokenizer, with the option's template instead of theirs, or with Ringline's if they have none.

    Raises ``CheckpointError``.
    """
    template = read_template(config)
    if template is None and files and config.runner != "generate":
        template = _of_pairs(files, config)
    if template is None and files and not has_template(files):
        template = builtin_template(_directory(config))
    if template is None:
        return dict(files)
    return {name: data for name, data in files.items() if not name.startswith(_ADDITIONAL)} | {_FILE: template}


def _of_pairs(files: Mapping[str, bytes], config: ModelConfig) -> bytes | None:
    """The template for pairs, of a model that scores them, if it is not that of ``files`` as it is; None for others."""
    options = read_pooler_options(config.pooler_config)
    try:
        model = _directory(config)
    except CheckpointError:  # whoever reads the model says so
        return None
    is_layout = model.is_dir() and has_logit_score(model)
    if is_layout and has_template(files):
        before, own = template_arguments(model), _own(files)
        return None if own is None or not before else before + own
    if is_of_pairs(files):
        return None
    scores_tokens = is_layout or (options is not None and bool(options.classifier_from_token))
    return pair_template(model, scores_tokens=scores_tokens)


def _own(files: Mapping[str, bytes]) -> bytes | None:
    """The only template of a tokenizer; None if there is another one for each purpose."""
    if _FILE in files:
        return files[_FILE]
    template = load_json(files, "tokenizer_config.json").get("chat_template")
    return template.encode() if isinstance(template, str) else None


def _directory(config: ModelConfig) -> Path:
    return find_checkpoint(config.model, config.revision, config.download_dir, weights=False)


def read_template(config: ModelConfig) -> bytes | None:
    """The option's template; None without it. Raises ``ConfigError`` for a file that is no template."""
    given = config.chat_template
    if given is None:
        return None
    if any(mark in given for mark in _MARKS):
        return given.encode()
    try:
        if not stat.S_ISREG(Path(given).stat().st_mode):  # a pipe or a device may block forever, or never end
            raise ConfigError("chat_template", given, "a regular file, or the text of a template")
        with Path(given).open("rb") as file:
            template = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # also of a name with a null character
        problem = f"a file that can be read, or the text of a template ({getattr(error, 'strerror', None) or error})"
        raise ConfigError("chat_template", given, problem) from None
    if len(template) > _MOST_BYTES:
        raise ConfigError("chat_template", given, f"a file of at most {_MOST_BYTES} bytes, or the text of a template")
    return template
