"""The text of each token (its piece), computed once per token from the tokenizer's decoder.

A ``tokenizers`` decoder turns a list of vocabulary entries into text. Every decoder supported here works entry by
entry, with two exceptions: bytes are joined into characters, and a space may be dropped at the start of the text. So a
piece is either *text* (``str``) or *bytes* that are a part of a character (``bytes``), and the first token's piece may
differ. Then decoding a stream takes one table lookup per token.

Two ways of joining bytes exist:

- byte level (GPT-2, Llama 3, Qwen): all tokens are bytes of one UTF-8 stream; each ill-formed part becomes U+FFFD;
- byte fallback (SentencePiece, Llama 2, Gemma): only ``<0x…>`` entries are bytes; a run of them between text tokens
  is UTF-8, or else one U+FFFD per byte.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, decoders

from text_core.panics import panics_as_errors
from text_core.tokenizer_files import TokenizerError

_PER_TOKEN = ("Replace", "Metaspace", "WordPiece", "Strip")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class DecoderForm:
    """A tokenizer's decoder, split into the parts that streaming needs."""

    per_token: decoders.Decoder
    """The part that works on single vocabulary entries (and may treat the first one differently)."""
    byte_level: bool = False
    byte_fallback: bool = False
    strip: str = ""
    """Characters that are stripped from the start of the text: one character, repeated up to the maximum count."""
    separator: str = ""
    """Text between two tokens."""


def decoder_form(decoder: decoders.Decoder | None) -> DecoderForm:
    """Analyse a decoder; raises ``TokenizerError`` naming the part that cannot be streamed."""
    if decoder is None:
        return DecoderForm(_sequence([]), separator=" ")
    spec: dict[str, Any] = json.loads(decoder.__getstate__())
    chain = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    rest = [_known(part) for part in chain]
    per_token = _take(rest, *_PER_TOKEN)
    byte_level = bool(_take(rest, "ByteLevel"))
    byte_fallback = not byte_level and bool(_take(rest, "ByteFallback"))
    fused = bool(_take(rest, "Fuse"))
    strip = rest.pop(0) if fused and rest and rest[0]["type"] == "Strip" else None
    if rest or (byte_level and strip):
        order = ", ".join(part["type"] for part in chain)
        raise TokenizerError(f"the tokenizer's decoder has its parts in an order that cannot be streamed: {order}")
    stripped = strip["content"] * strip["start"] if strip else ""
    return DecoderForm(_sequence(per_token), byte_level, byte_fallback, stripped)


class Pieces(dict[int, str | bytes | None]):
    """The piece that each token id adds within a text; filled lazily.

    ``str``: complete text. ``bytes``: a part of a character that other tokens begin or end. ``None``: nothing (a
    skipped special token, or an id outside the vocabulary).
    """

    def __init__(self, tokenizer: Tokenizer, form: DecoderForm, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self.form = form
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens

    def __missing__(self, token_id: int) -> str | bytes | None:
        entry = self._tokenizer.id_to_token(token_id)
        if entry is None:
            return None  # not cached: there is no bound on ids outside the vocabulary
        with panics_as_errors():
            piece = self[token_id] = None if self._is_skipped(token_id) else self._piece(entry)
        return piece

    def first(self, token_id: int) -> str | bytes | None:
        """The piece of the token at the start of a text, before stripping."""
        piece = self[token_id]
        if not isinstance(piece, str) or self.form.byte_level:
            return piece
        with panics_as_errors():
            return self.form.per_token.decode([self._tokenizer.id_to_token(token_id) or ""])

    def _is_skipped(self, token_id: int) -> bool:
        if not self._skip_special_tokens or self._tokenizer.decode([token_id]):
            return False
        return bool(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def _piece(self, entry: str) -> str | bytes | None:
        form = self.form
        if form.byte_level:
            return _text_if_whole(_byte_level_bytes(form.per_token.decode([entry]))) or None
        once = form.per_token.decode([entry])
        text = form.separator + form.per_token.decode([entry, entry])[len(once) :]
        byte = _BYTE_TOKEN.fullmatch(text) if form.byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else text


def _known(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] not in (*_PER_TOKEN, "ByteLevel", "ByteFallback", "Fuse") or part.get("stop"):
        raise TokenizerError(
            f"the tokenizer's decoder {json.dumps(part, ensure_ascii=False)} is not supported: known are ByteLevel, "
            "ByteFallback, Fuse, Metaspace, Replace, WordPiece and Strip at the start"
        )
    return part


def _take(rest: list[dict[str, Any]], *types: str) -> list[dict[str, Any]]:
    """Remove and return the leading parts of ``rest`` whose types are in ``types``."""
    count = next((i for i, part in enumerate(rest) if part["type"] not in types), len(rest))
    taken, rest[:] = rest[:count], rest[count:]
    return taken


def _sequence(parts: list[dict[str, Any]]) -> decoders.Decoder:
    sequence = decoders.Sequence([])
    sequence.__setstate__(json.dumps({"type": "Sequence", "decoders": parts}).encode())
    return sequence


def _byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary.

    GPT-2's table: a byte that prints in Latin-1 stands for itself; the others, in order, are moved to U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


_ALPHABET = _byte_level_alphabet()


def _byte_level_bytes(entry: str) -> bytes:
    """The bytes of a vocabulary entry; an entry with a character outside the alphabet is an added token: plain text."""
    try:
        return bytes([_ALPHABET[character] for character in entry])
    except KeyError:
        return entry.encode()


def _text_if_whole(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
