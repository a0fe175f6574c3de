"""Parts of a ``tokenizer.json``, for the converters that write one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from engine_core.errors import CheckpointError

BYTE_LEVEL: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
"""GPT-2's bytes as characters: as a pre-tokenizer and as a decoder."""
SPACE = "▁"
"""SentencePiece's character for a space."""
_MOST_WORK = 2**28
"""Characters in all attempts to split pieces; vocabularies of 256,000 pieces need some 2^24."""


def tokenizer_json(model: dict[str, Any], added: Sequence[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    """A whole file: a BPE model, tokens never split in a text (``added_token``), and the ``parts`` around them."""
    around = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    head = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    return {**head, **dict.fromkeys(around), **parts, "model": {"type": "BPE", **model}}


def added_token(token_id: int, content: str, special: bool = True, rstrip: bool = False) -> dict[str, Any]:
    """A token that is never split in a text; with ``rstrip`` it takes the blanks after it, too."""
    flags = dict.fromkeys(("single_word", "lstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "rstrip": rstrip, "special": special}


def words(pattern: str) -> dict[str, Any]:
    """A pre-tokenizer that makes a word of each match of a regular expression, and of the text between matches."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def around_text(before: tuple[str, int] | None, after: tuple[str, int] | None = None) -> dict[str, Any] | None:
    """A post-processor that adds tokens (content, id) to a text; None without tokens."""
    if before is None and after is None:
        return None
    start, end = ([{"SpecialToken": {"id": token[0], "type_id": 0}}] if token else [] for token in (before, after))
    single = [*start, {"Sequence": {"id": "A", "type_id": 0}}, *end]
    tokens = {token[0]: {"id": token[0], "ids": [token[1]], "tokens": [token[0]]} for token in (before, after) if token}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def sentencepiece_parts(space_before: bool, legacy: bool) -> dict[str, Any]:
    """Normalizer, pre-tokenizer and decoder of a SentencePiece model that does not change texts.

    ``space_before``: a space is put before a text and, if ``legacy``, after special tokens.
    """
    decoders = [_replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    metaspace = None
    normalizer: dict[str, Any] | None = _replace(" ", SPACE)
    if space_before:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        if legacy:
            both = [{"type": "Prepend", "prepend": SPACE}, normalizer]
            normalizer = {"type": "Sequence", "normalizers": both}
        else:
            normalizer = None
            metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    decoder = {"type": "Sequence", "decoders": decoders}
    return {"normalizer": normalizer, "pre_tokenizer": metaspace, "decoder": decoder}


def merges_by_score(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """SentencePiece's merges: all pairs of pieces that make a piece, by its score, highest first.

    Both halves have lengths that pieces have, so a piece that is longer than all others costs few attempts. Raises
    ``CheckpointError``, which names no file, for pieces of so many lengths that all attempts would be long work.
    """
    lengths = sorted({len(piece) for piece in scores})
    if sum(len(piece) * bisect_left(lengths, len(piece)) for piece in scores) > _MOST_WORK:
        raise CheckpointError(
            f"it has pieces of {len(lengths)} lengths, up to {lengths[-1]} characters: expected so few and short ones "
            f"that the ways to split them in two have at most {_MOST_WORK} characters"
        )
    found = set(lengths)
    return [
        (piece[:end], piece[end:])
        for piece in sorted(scores, key=scores.__getitem__, reverse=True)
        for end in lengths[: bisect_left(lengths, len(piece))]
        if len(piece) - end in found and piece[:end] in scores and piece[end:] in scores
    ]


def _replace(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}
