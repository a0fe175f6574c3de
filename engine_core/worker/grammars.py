"""The grammar compiler of a process: the engine's, and that of the rank that samples."""

from __future__ import annotations

from engine_core.config import ModelConfig, ModelSpec
from engine_core.errors import CheckpointError
from engine_core.model_loader.tokenizer import tokenizer_directory
from engine_core.structured_output.compiler import GrammarCompiler, GrammarsUnavailableError


def open_grammars(config: ModelConfig, model: ModelSpec) -> GrammarCompiler:
    """A compiler for the tokenizer that ``config`` names. Raises ``GrammarsUnavailableError``."""
    if config.skip_tokenizer_init:
        raise GrammarsUnavailableError("--skip-tokenizer-init: a grammar needs the tokenizer")
    try:
        with tokenizer_directory(config) as directory:
            return GrammarCompiler.from_directory(directory, model.vocab_size, model.eos_token_ids)
    except CheckpointError as error:
        raise GrammarsUnavailableError(str(error)) from error
