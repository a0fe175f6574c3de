"""Converts a tokenizer to llguidance's: the bytes of tokens, and which of them are special."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from text_core.panics import TokenizerPanic, panics_as_errors
from text_core.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

WORD_SLICES = ("[a-zA-Z0-9 ]{1,10}", "[a-zA-Z0-9 ]{1,30}")
"""Tokens matching these are allowed all at once where an expression allows such texts: half of most vocabularies.
llguidance's own slices cover the text of JSON strings."""

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens for single bytes in vocabularies with byte fallback."""


class TokenTableError(ValueError):
    """A tokenizer cannot be used for grammars; the text says why."""


def token_table(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int], *, with_slices: bool
) -> LLTokenizer:
    """The tokens of ``tokenizer``, for logits of size ``vocab_size``: ids that the tokenizer lacks are never allowed.

    ``with_slices`` makes this slower and masks faster. Raises ``TokenTableError``.
    """
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise TokenTableError(f"llguidance is not installed: {error}") from None
    slices = [*LLTokenizer.json_slices(), *WORD_SLICES] if with_slices else []
    try:
        with panics_as_errors():
            text = _for_llguidance(tokenizer, vocab_size)
            return LLTokenizer(text, n_vocab=vocab_size, eos_token=sorted(eos_token_ids) or None, slices=slices)
    except TokenTableError:
        raise
    except (ValueError, TokenizerPanic) as error:
        raise TokenTableError(f"the tokenizer cannot be used for grammars: {error}") from error


def _for_llguidance(tokenizer: Tokenizer, vocab_size: int) -> str:
    """``tokenizer.json`` with a decoder that llguidance reads, and without added tokens that have no logits."""
    text, decoder = tokenizer.to_json(), tokenizer.decoder()
    readable = _readable(decoder)
    if not any(part["type"] in ("ByteLevel", "ByteFallback") for part in _flat(decoder)):
        for token in BYTES:
            if tokenizer.token_id(token) is not None:
                raise TokenTableError(
                    f"the tokenizer's decoder writes the token {token} as text, where grammars would take it for a byte"
                )
    if readable == decoder and all(token_id < vocab_size for token_id in tokenizer.added_tokens().values()):
        return text  # not parsed: that takes a second of a large vocabulary, in which no other thread runs
    spec = json.loads(text)
    added = [token for token in spec["added_tokens"] if token["id"] < vocab_size]
    return json.dumps(spec | {"added_tokens": added, "decoder": readable})


def _readable(decoder: Any) -> Any:
    """``decoder``, or an equivalent (same bytes of tokens) in a form that llguidance reads."""
    parts = list(_flat(decoder))
    kinds = {part["type"] for part in parts}
    if kinds <= {"ByteLevel", "Fuse"} and "ByteLevel" in kinds:
        return decoder
    spaces = [part for part in parts if part["type"] in ("Replace", "Metaspace")]
    characters = [_space(part) for part in spaces]
    is_known = kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"} and (
        spaces or "ByteFallback" in kinds
    )
    if not is_known or None in characters or len(spaces) > 1:
        names = ", ".join(part["type"] for part in parts) or "none"
        raise TokenTableError(
            f"the tokenizer's decoder ({names}) is not one of byte-level or byte-fallback tokenizers, whose tokens "
            "grammars can be matched with"
        )
    if "Metaspace" not in kinds and "ByteFallback" in kinds:
        return decoder
    replaced = [{"type": "Replace", "pattern": {"String": space}, "content": " "} for space in characters]
    return {"type": "Sequence", "decoders": [*replaced, {"type": "ByteFallback"}, {"type": "Fuse"}]}


def _flat(decoder: Any) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    for part in decoder["decoders"] if decoder["type"] == "Sequence" else ():
        yield from _flat(part)
    if decoder["type"] != "Sequence":
        yield decoder


def _space(part: dict[str, Any]) -> str | None:
    """The character that a part of a decoder turns into a space; None if it does something else."""
    if part["type"] == "Metaspace":
        return str(part.get("replacement", "▁"))
    pattern = part["pattern"].get("String")
    return pattern if part["content"] == " " and isinstance(pattern, str) and len(pattern) == 1 else None
