"""A checkpoint's tokenizer files: their allow-list, reading them, and their fingerprint.

The engine sends these files, and no others, to the CPU tiers.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""The allow-list; only the first is required. ``additional_chat_templates/NAME.jinja`` is allowed too."""

_PROCESSORS_TEMPLATE = "chat_template.json"

ADDITIONAL_TEMPLATES = "additional_chat_templates"


NO_TOKENIZER = {"tokenizer.json": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'}
"""The files of a tokenizer without tokens, for token ids alone."""
NEEDS_TOKENIZER = "needs a tokenizer, and the model was started without one (--skip-tokenizer-init): give token ids"


class TokenizerError(ValueError):
    """A tokenizer's files are missing, damaged or unsupported; the text is one sentence."""


def is_tokenizer_file(name: str) -> bool:
    """Whether ``name`` (a path relative to the checkpoint, with ``/``) is on the allow-list."""
    folder, _, base = name.rpartition("/")
    if folder:
        return folder == ADDITIONAL_TEMPLATES and base.endswith(".jinja") and base != ".jinja"
    return name in TOKENIZER_FILES


def read_tokenizer_files(directory: str | Path) -> dict[str, bytes]:
    """Contents of the allow-listed files of ``directory``, keyed by relative name.

    A template that stands only in ``chat_template.json``, as multimodal checkpoints have it, becomes
    ``chat_template.jinja``. Raises ``TokenizerError``.
    """
    root = Path(directory)
    paths = [root / name for name in TOKENIZER_FILES]
    paths += sorted((root / ADDITIONAL_TEMPLATES).glob("*.jinja"))
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths if path.is_file()}
    beside = root / _PROCESSORS_TEMPLATE
    if "chat_template.jinja" in files or not beside.is_file():
        return files
    if load_json(files, "tokenizer_config.json").get("chat_template") is None:
        template = load_json({beside.name: beside.read_bytes()}, beside.name).get("chat_template")
        if not isinstance(template, str):
            raise TokenizerError(f"{beside} must hold a text named chat_template")
        files["chat_template.jinja"] = template.encode()
    return files


def fingerprint(files: Mapping[str, bytes]) -> str:
    """SHA-256 (hex) over the names and contents of the allow-listed files among ``files``.

    Services that work on the same token ids must have equal fingerprints.
    """
    digest = hashlib.sha256()
    for name in sorted(filter(is_tokenizer_file, files)):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """The files as a ZIP, the same bytes whenever they are the same."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def load_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The JSON object in ``files[name]``; empty if there is no such file. Raises ``TokenizerError``."""
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{name} must hold a JSON object, not {type(value).__name__}")
    return value
