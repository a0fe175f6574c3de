"""The tokenizer's files for the CPU tiers: read from the checkpoint, sent in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from ringline.engine.v1 import engine_pb2

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.chat_template import with_template
from engine_core.model_loader.pooled_tokenizer import for_pooling
from engine_core.model_loader.tokenizer import tokenizer_directory
from text_core.chat_templates import ChatTemplates
from text_core.tokenizer import Tokenizer
from text_core.tokenizer_files import NO_TOKENIZER, read_tokenizer_files

CHUNK_BYTES = 1 << 20

log = structlog.get_logger(__name__)


def read_tokenizer(config: ModelConfig) -> dict[str, bytes]:
    """The allow-listed tokenizer files by name; ``tokenizer.json`` is among them. Raises ``CheckpointError``."""
    if config.skip_tokenizer_init:
        return NO_TOKENIZER
    with tokenizer_directory(config) as directory:
        return with_template(for_pooling(read_tokenizer_files(directory), config), config)


def checked_tokenizer(files: dict[str, bytes]) -> Tokenizer:
    """The tokenizer of ``files``; raises ``CheckpointError`` if they, or a chat template, are damaged."""
    try:
        ChatTemplates.from_files(files)
        return Tokenizer.from_files(files)
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def warn_without_template(files: dict[str, bytes]) -> None:
    """Log that a model that generates has no chat template. ``files``: checked ones."""
    if files != NO_TOKENIZER and not ChatTemplates.from_files(files).names:
        log.warning("the model has no chat template, so chats are refused: --chat-template gives it one")


def chunks(files: dict[str, bytes]) -> Iterator[engine_pb2.GetTokenizerResponse]:
    """The files one after another, in chunks of at most ``CHUNK_BYTES``; an empty file is one empty chunk."""
    for name, data in files.items():
        for start in range(0, max(1, len(data)), CHUNK_BYTES):
            yield engine_pb2.GetTokenizerResponse(
                name=name, total_bytes=len(data), data=data[start : start + CHUNK_BYTES]
            )
