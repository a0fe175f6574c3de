"""What changes the tokenizer of a model that pools: files of sentence-transformers, which stand beside its own."""

from __future__ import annotations

from typing import NamedTuple

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.json_files import read_object
from engine_core.model_loader.location import find_checkpoint
from engine_core.model_loader.pooling_model import layout_of
from engine_core.pooling.config import PoolingType, transformer_fields


class TextChanges(NamedTuple):
    """Arguments of ``text_core.tokenizer_changes.changed_files``."""

    lowers: bool
    pools_last: bool


def changes_for_pooling(config: ModelConfig) -> TextChanges:
    """None but for a model in sentence-transformers' layout, which does not generate; what cannot be read stays as it
    is, for whoever reads it next.
    """
    if config.runner == "generate":
        return TextChanges(lowers=False, pools_last=False)
    try:
        model = find_checkpoint(config.model, config.revision, config.download_dir, weights=False)
        if not (model / "modules.json").is_file():
            return TextChanges(lowers=False, pools_last=False)
        _, fields = transformer_fields(model, read_object)
        return TextChanges(fields.get("do_lower_case") is True, layout_of(model).pooling is PoolingType.LAST)
    except CheckpointError:
        return TextChanges(lowers=False, pools_last=False)
