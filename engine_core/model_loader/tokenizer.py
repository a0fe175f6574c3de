"""A model's tokenizer: where its files are, and for offline use, text to ids and back by transformers.

An engine that is given ids needs none of this: a service only passes the files on.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError
from engine_core.model_loader.checkpoint import tokenizer_source
from engine_core.model_loader.tekken import TEKKEN_FILE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OTHER_KINDS = (
    (TEKKEN_FILE,),
    ("tokenizer.model",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)
"""Sets of files from which a ``tokenizer.json`` can be made: any one of them will do."""
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s")
"""A token in base64, and its rank."""
_OTHERWISE = "--tokenizer names another directory or model"
_CONTEXT_TOKENS = 16
"""How many of a prompt's last tokens decide how the text after it begins."""
_MOST_BYTES = 4
"""The most bytes of a character, each of which may be a token."""
_REPLACEMENT = "\ufffd"


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, with the special tokens that belong around it."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The tokenizer that ``config`` names, or the model's own. Raises ``CheckpointError``.

    As in the ring, ``tokenizer.json`` decides: transformers' classes for some families would make another one of it.
    """
    from transformers import PreTrainedTokenizerFast

    with tokenizer_directory(config) as directory:
        try:
            return _Pretrained(PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True))
        except Exception as error:  # whatever a broken file makes its parsers raise
            raise CheckpointError(f"the tokenizer cannot be read: {' '.join(str(error).split())}") from error


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int]) -> str:
    """What ``output`` adds to the text of ``prompt``: decoded alone, it may lose the space that it begins with."""
    for size in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _MOST_BYTES):
        context = list(prompt[-size:])
        text = tokenizer.decode([*context, *output])
        if not text.startswith(_REPLACEMENT):  # else it may begin inside a character, and spoil those after it
            break
    # Drop as much of the prompt's text as stands unchanged: a character that ``output`` completes does not.
    before = (tokenizer.decode(context[:end]) for end in range(len(context), 0, -1))
    return text.removeprefix(next((each for each in before if text.startswith(each)), ""))


@contextmanager
def tokenizer_directory(config: ModelConfig) -> Iterator[Path]:
    """The directory of the tokenizer's files, with a ``tokenizer.json`` among them.

    Where there is none, the tokenizer is converted, in another process, into a temporary directory.
    Raises ``CheckpointError``.
    """
    directory = tokenizer_source(config)
    if (directory / "tokenizer.json").is_file():
        yield directory
        return
    with tempfile.TemporaryDirectory() as converted:
        _convert(directory, converted)
        yield Path(converted)


def _convert(directory: Path, target: str) -> None:
    kinds = [kind for kind in _OTHER_KINDS if all((directory / name).is_file() for name in kind)]
    if (ranks := _tiktoken_file(directory)) and all(kind == (ranks.name,) for kind in kinds):
        raise CheckpointError(
            f"{directory} has its tokenizer in {ranks.name}, in tiktoken's format, which is not supported: it does not "
            f"say how a text is split; {_OTHERWISE}"
        )
    if not kinds:
        # transformers would make an empty tokenizer of what config.json says.
        others = ", ".join(" with ".join(kind) for kind in _OTHER_KINDS)
        raise CheckpointError(
            f"{directory} has no tokenizer: expected tokenizer.json, or one of {others}; {_OTHERWISE}"
        )
    command = [sys.executable, "-P", "-m", "engine_core.model_loader.convert_tokenizer", str(directory), target]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        problem = " ".join((finished.stdout or finished.stderr).split())
        raise CheckpointError(
            f"{directory} has no tokenizer.json, and its tokenizer cannot be converted: {problem}; {_OTHERWISE}"
        )
    if not Path(target, "tokenizer.json").is_file():
        raise CheckpointError(f"{directory} has no tokenizer.json, and its tokenizer has no fast form to convert to")


def _tiktoken_file(directory: Path) -> Path | None:
    """A file of tiktoken's format, which may have SentencePiece's usual name."""
    for path in (*sorted(directory.glob("*.tiktoken")), directory / "tiktoken.model", directory / "tokenizer.model"):
        if path.is_file():
            with path.open("rb") as file:
                if _TIKTOKEN_LINE.match(file.read(1024)):
                    return path
    return None


class _Pretrained:
    """A tokenizer from transformers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, verbose=False)["input_ids"]  # a prompt too long is refused elsewhere
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text
