"""Bearer tokens: files of tokens, and the ``authorization`` metadata of a call (RFC 6750)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from services.common.security.file_reload import ReloadedFile, UnusableFile

AUTHORIZATION = "authorization"
MAX_TOKEN_LENGTH = 8192
_TOKEN = re.compile(r"[\x21-\x7e]+")


def is_token(text: str) -> bool:
    """Whether ``text`` can be sent as a token."""
    return _TOKEN.fullmatch(text) is not None and len(text) <= MAX_TOKEN_LENGTH


def bearer_metadata(token: str) -> tuple[str, str]:
    """The metadata entry that carries ``token``."""
    return (AUTHORIZATION, f"Bearer {token}")


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token in a call's metadata; None if there is none.

    Raises ``ValueError`` for malformed metadata; its text does not quote the metadata.
    """
    values = [value for key, value in metadata if key == AUTHORIZATION]
    if not values:
        return None
    if len(values) > 1:
        raise ValueError(f"{len(values)} values: expected one")
    scheme, _, token = str(values[0]).partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not is_token(token):
        raise ValueError("malformed: expected 'Bearer' and a token")
    return token


def reloaded_tokens(flag: str, path: str, *, min_length: int = 1) -> ReloadedFile[tuple[str, ...]]:
    """The tokens in a file, one per line; the first is the one to send. Raises ``FatalError`` for an unusable file."""

    def parse(contents: Mapping[str, bytes]) -> tuple[str, ...]:
        try:
            lines = contents[flag].decode("ascii").split("\n")
        except UnicodeDecodeError:
            raise UnusableFile(flag, "it holds no token: expected one a line, in ASCII") from None
        tokens = tuple(line.strip() for line in lines if line.strip())
        for number, token in enumerate(tokens, 1):
            if not _TOKEN.fullmatch(token) or not min_length <= len(token) <= MAX_TOKEN_LENGTH:
                raise UnusableFile(
                    flag,
                    f"token {number} is not usable: expected {min_length} to {MAX_TOKEN_LENGTH} printable characters",
                )
        return tokens

    return ReloadedFile({flag: path}, parse)
