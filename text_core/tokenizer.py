"""A model's tokenizer, based on the ``tokenizers`` library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import tokenizers

from text_core.panics import TokenizerPanic, panics_as_errors
from text_core.pieces import Pieces, decoder_form
from text_core.special_tokens import SpecialTokens, read_special_tokens
from text_core.tokenizer_files import TOKENIZER_FILES, TokenizerError, fingerprint, load_json, read_tokenizer_files

_CHUNK_TOKENS = 1024
"""Tokens decoded at a time by ``text_bytes``."""

__all__ = ["TOKENIZER_FILES", "Tokenizer", "TokenizerError"]
_WHITE_SPACE = re.compile(r"([\sĠĊĉčċČ▁]|<0x(09|0A|0B|0C|0D|20)>)+")
"""Entries of vocabularies, in each of which a character stands for one of white space."""
_MOST_WHITE_SPACE = 16


class EncodedPair(NamedTuple):
    """Two texts as one input."""

    ids: list[int]
    second_text: int | None
    """Index of the first token of type 1; None: all are of type 0."""


class Tokenizer:
    """A model's tokenizer; immutable and thread-safe.

    ``encode``, ``encode_batch`` and ``decode`` release the GIL, so they can run in threads without blocking an event
    loop. Encoding gives the same ids as transformers' ``PreTrainedTokenizerFast`` on the same files. Decoding gives the
    same text as the ``tokenizers`` library: ``clean_up_tokenization_spaces`` is not applied, because it would remove
    spaces that a stream has already delivered.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        special = read_special_tokens(files)
        self._tokenizer = _load(files, special)
        self._fingerprint = fingerprint(files)
        form = decoder_form(self._tokenizer.decoder)
        self._pieces = {skip: Pieces(self._tokenizer, form, skip_special_tokens=skip) for skip in (False, True)}
        self.special_tokens: Mapping[str, str] = special.named
        """Text of the special tokens, keyed by role (such as ``bos_token``)."""
        self.eos_token_ids = self._eos_token_ids(files)
        """The tokenizer's eos token and those that ``generation_config.json`` adds."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Load from contents keyed by file name; of ``TOKENIZER_FILES`` only ``tokenizer.json`` is required.

        Raises ``TokenizerError`` if they are damaged, or if their decoder cannot decode a stream.
        """
        try:
            with panics_as_errors():
                return cls(files)
        except TokenizerPanic as panic:
            raise TokenizerError(f"the tokenizer's files cannot be used: {panic}") from None
        except UnicodeEncodeError as error:  # half of a surrogate pair in JSON
            raise TokenizerError(f"the tokenizer's files cannot be used: {error.object!r} is not Unicode") from None

    @classmethod
    def from_directory(cls, path: str | Path) -> Self:
        return cls.from_files(read_tokenizer_files(path))

    def encode(
        self, text: str, *, add_special_tokens: bool = True, truncate_prompt_tokens: int | None = None
    ) -> list[int]:
        """The ids of ``text``.

        ``truncate_prompt_tokens`` (≥ 1) keeps that many tokens: the special tokens added around the text, and the
        text's last ones.
        """
        return self.encode_batch([text], add_special_tokens, truncate_prompt_tokens)[0]

    @panics_as_errors()
    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True, truncate_prompt_tokens: int | None = None
    ) -> list[list[int]]:
        """``encode`` of each text, in parallel."""
        # Only the batch methods release the GIL in every version of the library.
        encode = self._tokenizer.encode_batch_fast
        if truncate_prompt_tokens is None:
            return [encoding.ids for encoding in encode(list(texts), add_special_tokens=add_special_tokens)]
        return [
            self._cut(encoding, truncate_prompt_tokens, "left", add_special_tokens)
            for encoding in encode(list(texts), add_special_tokens=False)
        ]

    @panics_as_errors()
    def encode_cut(self, text: str, max_tokens: int, *, keep_end: bool, add_special_tokens: bool = True) -> list[int]:
        """The ids of ``text``, cut to ``max_tokens`` (≥ 1), of which the special tokens around it take some."""
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return self._cut(encoding, max_tokens, "left" if keep_end else "right", add_special_tokens)

    def _cut(self, encoding: tokenizers.Encoding, max_tokens: int, side: str, add_special_tokens: bool) -> list[int]:
        """The ids of an encoding without special tokens, cut on one side."""
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
        encoding.truncate(max(max_tokens - special, 0), direction=side)
        ids: list[int] = self._tokenizer.post_process(encoding, add_special_tokens=add_special_tokens).ids
        return ids[-max_tokens:] if side == "left" else ids[:max_tokens]

    @panics_as_errors()
    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        """The ids of each pair of texts, with special tokens between and around them."""
        return [_pair_of(encoding) for encoding in self._tokenizer.encode_batch_fast(list(pairs))]

    @panics_as_errors()
    def encode_cut_pair(self, first: str, second: str, max_tokens: int, *, keep_end: bool) -> EncodedPair | None:
        """A pair whose second text is cut to make ``max_tokens``; None if the first alone takes all of them."""
        one, two = self._tokenizer.encode_batch_fast([first, second], add_special_tokens=False)
        room = max_tokens - self._tokenizer.num_special_tokens_to_add(is_pair=True) - len(one)
        if room < 1:
            return None
        two.truncate(room, direction="left" if keep_end else "right")
        return _pair_of(self._tokenizer.post_process(one, two))

    @panics_as_errors()
    def cut_text(self, text: str, max_tokens: int, *, keep_end: bool) -> str:
        """The part of ``text`` that its first ``max_tokens`` tokens (or its last) stand for."""
        if max_tokens <= 0:
            return ""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        if len(encoding) <= max_tokens:
            return text
        return text[encoding.offsets[-max_tokens][0] :] if keep_end else text[: encoding.offsets[max_tokens - 1][1]]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``; ids outside the vocabulary add nothing."""
        # decode_batch for the same reason as in ``encode_batch``
        with panics_as_errors():
            text: str = self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]
        return text

    def text_bytes(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> int:
        """About how many UTF-8 bytes ``decode`` would return, without holding the whole text."""
        parts = (token_ids[start : start + _CHUNK_TOKENS] for start in range(0, len(token_ids), _CHUNK_TOKENS))
        return sum(len(self.decode(part, skip_special_tokens=skip_special_tokens).encode()) for part in parts)

    def pieces(self, *, skip_special_tokens: bool = True) -> Pieces:
        """The text of each token, for incremental decoding; one shared table per value of the flag."""
        return self._pieces[skip_special_tokens]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token, special or not, adds within a text; they may be a part of a character."""
        piece = self._pieces[False][token_id]
        return piece.encode() if isinstance(piece, str) else piece or b""

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry; None if there is no such entry."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def fingerprint(self) -> str:
        """The digest by ``tokenizer_files.fingerprint``."""
        return self._fingerprint

    def to_json(self) -> str:
        """The effective ``tokenizer.json``, with the tokens that other files add."""
        text: str = self._tokenizer.to_str()
        return text

    def decoder(self) -> dict[str, Any] | None:
        """The decoder as ``tokenizer.json`` has it; None without one."""
        decoder = self._tokenizer.decoder
        if decoder is None:
            return None
        spec: dict[str, Any] = json.loads(decoder.__getstate__())
        return spec

    def added_tokens(self) -> dict[str, int]:
        """Ids of the tokens that encoding keeps whole, special or not, keyed by text."""
        return {token.content: token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items()}

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def is_empty(self) -> bool:
        """Whether it has no tokens: it is that of ``NO_TOKENIZER``, for token ids alone."""
        return self.vocab_size == 0

    @property
    def bos_token_id(self) -> int | None:
        return self.token_id(self.special_tokens.get("bos_token", ""))

    @property
    def eos_token_id(self) -> int | None:
        return self.token_id(self.special_tokens.get("eos_token", ""))

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """The tokens that ``skip_special_tokens`` omits."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id in added if self._pieces[True][token_id] is None)

    @cached_property
    def white_space_ids(self) -> tuple[int, ...]:
        """The tokens of nothing but white space, of at most 16 characters."""
        entries = self._tokenizer.get_vocab(with_added_tokens=True)
        found = {i: self.token_bytes(i) for entry, i in entries.items() if _WHITE_SPACE.fullmatch(entry)}
        return tuple(sorted(i for i, text in found.items() if text.isspace() and len(text) <= _MOST_WHITE_SPACE))

    def _eos_token_ids(self, files: Mapping[str, bytes]) -> frozenset[int]:
        declared = load_json(files, "generation_config.json").get("eos_token_id")
        ids = declared if isinstance(declared, list) else [declared]
        return frozenset(token_id for token_id in [*ids, self.eos_token_id] if isinstance(token_id, int))


def _pair_of(encoding: tokenizers.Encoding) -> EncodedPair:
    kinds = encoding.type_ids
    return EncodedPair(encoding.ids, kinds.index(1) if 1 in kinds else None)


def _load(files: Mapping[str, bytes], special: SpecialTokens) -> tokenizers.Tokenizer:
    """``tokenizer.json`` with the configuration files' tokens, and without its own truncation and padding."""
    if "tokenizer.json" not in files:
        raise TokenizerError("the tokenizer has no tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
    except Exception as error:  # the library raises plain Exceptions
        raise TokenizerError(f"tokenizer.json cannot be read: {error}") from error
    tokenizer.add_tokens(special.to_add(tokenizer.get_added_tokens_decoder().values()))
    tokenizer.encode_special_tokens = bool(load_json(files, "tokenizer_config.json").get("split_special_tokens"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
