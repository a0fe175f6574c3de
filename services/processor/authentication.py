"""Authentication of clients by bearer token: a token whose hash is listed in a file, or a signed JSON web token.

Errors never quote a token, and no token is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from hashlib import sha256
from typing import TYPE_CHECKING

from services.common.config.security_settings import ClientAuthSettings
from services.common.rpc.handlers import Authorize, Context
from services.common.security.file_reload import ReloadedFile, UnusableFile
from services.common.security.tokens import AUTHORIZATION, bearer_token
from services.processor.principal import MAX_TENANT_LENGTH, Principal, authenticated
from services.ring.errors import Code, Refused

if TYPE_CHECKING:  # PyJWT and cryptography take a tenth of a second to load
    from services.processor.json_web_tokens import JsonWebTokens

TOKEN_FLAG = "--auth-token-file"
API_KEY_TENANT = "api-key"
"""The tenant of all keys of --api-key."""
_LINE = re.compile(rf"(\S{{1,{MAX_TENANT_LENGTH}}})\s+sha256:([0-9a-fA-F]{{64}})")


def client_authorizers(settings: ClientAuthSettings) -> list[Authorize]:
    """The authorizers of clients; empty if no authentication is configured.

    Raises ``FatalError`` for unusable files.
    """
    hashes = web_tokens = None
    if settings.auth_token_file is not None:
        hashes = ReloadedFile({TOKEN_FLAG: settings.auth_token_file}, _parse_hashes)
    if settings.auth_jwks_file is not None:
        from services.processor.json_web_tokens import JsonWebTokens

        web_tokens = JsonWebTokens(settings)
    keys = frozenset(sha256(key.encode()).hexdigest() for key in settings.api_key)
    if hashes is None and web_tokens is None and not keys:
        return []
    return [Authenticator(hashes, web_tokens, keys).authenticate]


class Authenticator:
    """Finds the principal of a call by its token."""

    def __init__(
        self,
        hashes: ReloadedFile[Mapping[str, str]] | None,
        web_tokens: JsonWebTokens | None,
        keys: Set[str] = frozenset(),
    ) -> None:
        """``hashes`` maps the SHA-256 of each token, in hex, to its tenant; ``keys`` are those of API keys."""
        self._hashes = hashes
        self._web_tokens = web_tokens
        self._keys = keys

    def authenticate(self, context: Context, _: str) -> None:
        """Set ``authenticated`` for this call; raises ``Refused``."""
        try:
            token = bearer_token(context.invocation_metadata() or ())
            if token is None:
                raise ValueError("missing: expected 'Bearer' and a token")
            principal = self._by_hash(token)
            if principal is None and self._web_tokens is not None and token.count(".") == 2:
                principal = self._web_tokens.principal(token)
            if principal is None:
                raise ValueError("the token is not known")
        except ValueError as error:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: {error}") from None
        authenticated.set(principal)

    def _by_hash(self, token: str) -> Principal | None:
        # A token's entropy is too high to guess its hash, or find it by timing look-ups.
        digest, hashes = sha256(token.encode()).hexdigest(), self._hashes
        if digest in self._keys:
            return Principal(API_KEY_TENANT)
        if hashes is None:
            return None
        tenant = hashes.value.get(digest)
        return None if tenant is None else Principal(tenant, _still_listed(hashes, digest, tenant))


def _still_listed(hashes: ReloadedFile[Mapping[str, str]], digest: str, tenant: str) -> Callable[[], bool]:
    return lambda: hashes.value.get(digest) == tenant


def _parse_hashes(contents: Mapping[str, bytes]) -> Mapping[str, str]:
    """Maps hashes to tenants; skips empty lines and lines that begin with #."""
    try:
        lines = contents[TOKEN_FLAG].decode().split("\n")
    except UnicodeDecodeError:
        raise UnusableFile(TOKEN_FLAG, "it is not text: expected UTF-8") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not match[1].isprintable():
            form = f"a tenant of at most {MAX_TENANT_LENGTH} characters, a space and sha256: with 64 hexadecimal digits"
            raise UnusableFile(TOKEN_FLAG, f"line {number} is not usable: expected {form}")
        digest = match[2].lower()
        if found.setdefault(digest, match[1]) != match[1]:
            raise UnusableFile(TOKEN_FLAG, f"line {number} gives a token to a second tenant: expected one per token")
    if not found:
        raise UnusableFile(TOKEN_FLAG, "it names no token")
    return found
