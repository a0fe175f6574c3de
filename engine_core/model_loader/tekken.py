"""Converts Tekken, the tokenizer that mistral-common reads from ``tekken.json``, to a ``tokenizer.json``.

The file has tiktoken's data: a pattern that splits a text into words, and byte strings ordered by rank. Within a word,
tiktoken repeatedly joins the two neighbours whose joint bytes have the lowest rank, the leftmost of equals, until no
two make a token. The ``tokenizers`` library joins listed pairs, in the order of the list: here all pairs of tokens that
make a token, ordered by its rank. Both give the same ids. If several pairs make the same token, their order does not
matter: as long as its bytes are joined with no others, they reduce to two parts in one way only.

Special tokens have the ids before the ranks. As in every ``tokenizer.json``, but not in mistral-common, a text that
spells a special token becomes that token, so that chat templates can write them.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_core.errors import CheckpointError
from engine_core.model_loader.tokenizer_json import BYTE_LEVEL, added_token, around_text, tokenizer_json, words

TEKKEN_FILE = "tekken.json"

_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of the published files. The library's regular expressions might read another one differently."""
_BOS = "<s>"
_UNLISTED = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""The special tokens of files that list none, as ``_VERSIONS_WITHOUT_LIST`` may."""
_VERSIONS_WITHOUT_LIST = ("v1", "v2", "v3", "v7")
_ROLES = {"bos_token": _BOS, "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def read_tekken(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The contents of ``tokenizer.json`` and ``tokenizer_config.json`` for a ``tekken.json``.

    The tokenizer adds bos to a text, as mistral-common does to a prompt. Raises ``CheckpointError`` naming the unusable
    part of the file.
    """
    try:
        content = json.loads(path.read_bytes())
        config = content["config"]
        if config["pattern"] != _PATTERN:
            raise CheckpointError(f"pattern {config['pattern']!r} is not supported: expected {_PATTERN!r}")
        num_special = int(config["default_num_special_tokens"])
        special = _special_tokens(content.get("special_tokens"), str(config.get("version")), num_special)
        tokens = _tokens(content["vocab"], int(config["default_vocab_size"]) - num_special)
        return _tokenizer(special, tokens), {role: token for role, token in _ROLES.items() if token in special}
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _special_tokens(listed: list[dict[str, Any]] | None, version: str, count: int) -> list[str]:
    """All ``count`` special tokens by id: those listed, then fillers."""
    if listed is not None:
        contents = [str(token["token_str"]) for token in sorted(listed, key=lambda token: int(token["rank"]))]
        if sorted(int(token["rank"]) for token in listed) != list(range(len(listed))):
            raise CheckpointError("special_tokens must have the ranks from 0 on, each once")
    elif version in _VERSIONS_WITHOUT_LIST:
        contents = list(_UNLISTED)
    else:
        raise CheckpointError(
            f"special_tokens is missing in version {version}: only {', '.join(_VERSIONS_WITHOUT_LIST)} have none"
        )
    contents = [*contents, *(f"<SPECIAL_{i}>" for i in range(len(contents), count))]
    if len(contents) != count or len(set(contents)) != count or _BOS not in contents:
        raise CheckpointError(
            f"special_tokens must be at most {count} (default_num_special_tokens), all different, {_BOS} among them"
        )
    return contents


def _tokens(vocab: Sequence[dict[str, Any]], count: int) -> list[bytes]:
    """The first ``count`` tokens by rank; files have more, which are unused."""
    used = vocab[:count]
    tokens = [b64decode(entry["token_bytes"], validate=True) for entry in used]
    ranks = [entry["rank"] for entry in used]
    if ranks != list(range(count)) or len(set(tokens)) != count:
        raise CheckpointError(f"vocab must have the ranks 0 to {count - 1} in order, each with bytes of its own")
    if not {bytes([byte]) for byte in range(256)} <= set(tokens):
        raise CheckpointError("vocab must have all 256 single bytes")
    return tokens


def _tokenizer(special: Sequence[str], tokens: Sequence[bytes]) -> dict[str, Any]:
    alphabet = _byte_alphabet()
    spelled = {token: "".join(map(alphabet.__getitem__, token)) for token in tokens}
    vocab = {content: token_id for token_id, content in enumerate((*special, *spelled.values()))}
    if len(vocab) != len(special) + len(tokens):
        raise CheckpointError("special_tokens and vocab have a token in common, which is not supported")
    merges = [
        (spelled[token[:end]], spelled[token[end:]])
        for token in tokens
        for end in range(1, len(token))
        if token[:end] in spelled and token[end:] in spelled
    ]
    return tokenizer_json(
        # A word that is a token becomes that token, even if no merges lead to it.
        {"ignore_merges": True, "vocab": vocab, "merges": merges},
        [added_token(token_id, content) for token_id, content in enumerate(special)],
        pre_tokenizer={"type": "Sequence", "pretokenizers": [words(_PATTERN), BYTE_LEVEL]},
        post_processor=around_text((_BOS, vocab[_BOS])),
        decoder=BYTE_LEVEL,
    )


def _byte_alphabet() -> list[str]:
    """The character for each byte in a byte-level vocabulary: GPT-2's table.

    A byte that prints in Latin-1 stands for itself; the others map, in order, to U+0100 and up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (chr(0x100 + i) for i in range(0x100))
    return [chr(byte) if byte in printable else next(moved) for byte in range(0x100)]
