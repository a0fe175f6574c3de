"""Whether a client is let in: the bearer token that it must show, known by its hash or signed as a JSON web token.

Errors say what is wrong with a token, and nothing of what is in it; no token is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import grpc

from services.config.security_settings import AuthSettings
from services.processor.principal import MAX_TENANT_LENGTH, Principal, authenticated
from services.ring.errors import Code, Refused
from services.security.auth_interceptor import AuthInterceptor, Context
from services.security.file_reload import ReloadedFile, Unusable
from services.security.tokens import AUTHORIZATION, token_in

if TYPE_CHECKING:  # PyJWT and cryptography take a tenth of a second to load
    from services.processor.json_web_tokens import JsonWebTokens

TOKEN_FLAG = "--auth-token-file"
_LINE = re.compile(rf"(\S{{1,{MAX_TENANT_LENGTH}}})\s+sha256:([0-9a-fA-F]{{64}})")


def client_gate(settings: AuthSettings) -> list[grpc.aio.ServerInterceptor]:
    """The gate of a processor; none where clients need not prove who they are.

    Raises ``FatalError`` for files that cannot be used.
    """
    hashes = web_tokens = None
    if settings.auth_token_file is not None:
        hashes = ReloadedFile({TOKEN_FLAG: settings.auth_token_file}, _parse_hashes)
    if settings.auth_jwks_file is not None:
        from services.processor.json_web_tokens import JsonWebTokens

        web_tokens = JsonWebTokens(settings)
    return [] if hashes is None and web_tokens is None else [AuthInterceptor(Authenticator(hashes, web_tokens).admit)]


class Authenticator:
    """Finds out whose token a call shows."""

    def __init__(self, hashes: ReloadedFile[Mapping[str, str]] | None, web_tokens: JsonWebTokens | None) -> None:
        """``hashes``: tenants by the hash of a token."""
        self._hashes = hashes
        self._web_tokens = web_tokens

    def admit(self, context: Context, _: str) -> None:
        """Let it be known who calls; raises ``Refused``."""
        try:
            token = token_in(context.invocation_metadata() or ())
            if token is None:
                raise ValueError("missing: expected 'Bearer' and a token")
            caller = self._by_hash(token)
            if caller is None and self._web_tokens is not None and token.count(".") == 2:
                caller = self._web_tokens.caller(token)
            if caller is None:
                raise ValueError("the token is not known")
        except ValueError as error:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: {error}") from None
        authenticated.set(caller)

    def _by_hash(self, token: str) -> Principal | None:
        # A token has too much randomness in it for its hash to be guessed, or found by how long a look-up takes.
        hashes = self._hashes
        if hashes is None:
            return None
        digest = sha256(token.encode()).hexdigest()
        tenant = hashes.value.get(digest)
        return None if tenant is None else Principal(tenant, _still(hashes, digest, tenant))


def _still(hashes: ReloadedFile[Mapping[str, str]], digest: str, tenant: str) -> Callable[[], bool]:
    return lambda: hashes.value.get(digest) == tenant


def _parse_hashes(contents: Mapping[str, bytes]) -> Mapping[str, str]:
    """Tenants by hash; empty lines and those that begin with # say nothing."""
    try:
        lines = contents[TOKEN_FLAG].decode().split("\n")
    except UnicodeDecodeError:
        raise Unusable(TOKEN_FLAG, "it is not text: expected UTF-8") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not match[1].isprintable():
            form = f"a tenant of at most {MAX_TENANT_LENGTH} characters, a space and sha256: with 64 hexadecimal digits"
            raise Unusable(TOKEN_FLAG, f"line {number} is not usable: expected {form}")
        digest = match[2].lower()
        if found.setdefault(digest, match[1]) != match[1]:
            raise Unusable(TOKEN_FLAG, f"line {number} gives a token to a second tenant")
    if not found:
        raise Unusable(TOKEN_FLAG, "it names no token")
    return found
