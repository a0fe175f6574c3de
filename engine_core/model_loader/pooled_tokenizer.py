"""The tokenizer of a model that pools, as its publisher used it: what stands beside ``tokenizer.json`` and changes ids.

Transformers' fifth release takes ``tokenizer.json`` as it is; the fourth, and sentence-transformers, change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.json_files import read_object
from engine_core.model_loader.location import find_checkpoint
from engine_core.model_loader.pooling_model import layout_of
from engine_core.pooling.config import PoolingType, transformer_fields
from text_core.special_tokens import read_special_tokens
from text_core.tokenizer_changes import changed_tokenizer
from text_core.tokenizer_files import TokenizerError, load_json

_FILE = "tokenizer.json"


def for_pooling(files: Mapping[str, bytes], config: ModelConfig) -> dict[str, bytes]:
    """``files`` of a tokenizer, changed if a model in sentence-transformers' layout needs that.

    Texts are made lower-case where ``do_lower_case`` of sentence_bert_config.json says so. Where the last token is
    pooled, and ``add_eos_token`` of tokenizer_config.json says that it is the one of the end, each text gets that
    token: E5-Mistral was trained so, and its ``tokenizer.json`` does not add it. A model that generates never gets it,
    as nothing follows an end. What cannot be read stays as it is, for whoever reads it next.
    """
    if config.runner == "generate":
        return dict(files)
    try:
        model = find_checkpoint(config.model, config.revision, config.download_dir, weights=False)
        lowers, end = _lowers(model), _end(model, files)
        changed = changed_tokenizer(files[_FILE], lowers=lowers, end=end) if lowers or end else None
    except (CheckpointError, TokenizerError):
        return dict(files)
    return dict(files) if changed is None else dict(files) | {_FILE: changed}


def _lowers(model: Path) -> bool:
    """Whether texts are made lower-case, whatever the tokenizer does."""
    if not (model / "modules.json").is_file():
        return False
    _, fields = transformer_fields(model, read_object)
    return fields.get("do_lower_case") is True


def _end(model: Path, files: Mapping[str, bytes]) -> str | None:
    """The token that is put behind each text."""
    if load_json(files, "tokenizer_config.json").get("add_eos_token") is not True:
        return None
    is_pooled = (model / "modules.json").is_file() and layout_of(model).pooling is PoolingType.LAST
    return read_special_tokens(files).named.get("eos_token") if is_pooled else None
