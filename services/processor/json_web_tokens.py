"""Verification of JSON web tokens against the keys of one issuer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import structlog

from services.common.config.security_settings import ClientAuthSettings
from services.common.security.file_reload import ReloadedFile, UnusableFile
from services.processor.principal import MAX_TENANT_LENGTH, Principal

log = structlog.get_logger(__name__)

JWKS_FLAG = "--auth-jwks-file"
JsonWebKey = dict[str, Any]
"""A key in the format of RFC 7517."""
MAX_LOGGED_KID, MAX_LOGGED_KIDS = 100, 20
"""Bounds on a log line: characters per key name, and number of names."""
LEEWAY = 30.0
"""Seconds by which the issuer's and this machine's clocks may differ."""
_PROBLEMS: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.ExpiredSignatureError, "the token has expired"),
    (jwt.ImmatureSignatureError, "the token is not valid yet"),
    (jwt.InvalidAudienceError, "the token is for another audience"),
    (jwt.InvalidIssuerError, "the token is of another issuer"),
    (jwt.InvalidSignatureError, "the token's signature is not valid"),
    (jwt.InvalidAlgorithmError, "the token's signature algorithm is not accepted"),
)


class JsonWebTokens:
    """Verifies tokens of one issuer for one audience."""

    def __init__(self, settings: ClientAuthSettings, now: Callable[[], float] = time.time) -> None:
        """Raises ``FatalError`` for an unusable file of keys."""
        assert settings.auth_jwks_file is not None
        self._keys = ReloadedFile({JWKS_FLAG: settings.auth_jwks_file}, _parse_keys)
        self._issuer = settings.auth_jwt_issuer
        self._audience = settings.auth_jwt_audience
        self._algorithms = list(settings.auth_jwt_algorithms)
        self._claim = settings.auth_jwt_tenant_claim
        self._now = now

    def principal(self, token: str) -> Principal:
        """The principal of a token; raises ``ValueError`` with the reason if the token is not accepted."""
        try:
            header = jwt.get_unverified_header(token)
            keys = self._keys.value
            name = self._key_name(header, keys)
            key = keys[name]
            claims = jwt.decode(
                token,
                # An RSA key need not name its algorithm; the others do, or their curve implies it.
                jwt.PyJWK(key, header["alg"] if key["kty"] == "RSA" and not key.get("alg") else None),
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", self._claim]},
            )
        except jwt.MissingRequiredClaimError as error:
            raise ValueError(f"the token lacks the claim {error.claim}") from None
        except jwt.PyJWTError as error:
            words = (words for kind, words in _PROBLEMS if isinstance(error, kind))
            raise ValueError(next(words, "the token cannot be read")) from None
        tenant, end = claims[self._claim], float(claims["exp"]) + LEEWAY
        if not isinstance(tenant, str) or not 1 <= len(tenant) <= MAX_TENANT_LENGTH or not tenant.isprintable():
            raise ValueError(
                f"the token's {self._claim} is not a tenant: expected 1 to {MAX_TENANT_LENGTH} printable characters"
            )
        return Principal(tenant, lambda: self._now() < end and self._keys.value.get(name) == key)

    def _key_name(self, header: Mapping[str, Any], keys: Mapping[str, JsonWebKey]) -> str:
        """The name of the key that signed the token; a token may omit it if there is only one key."""
        if header.get("alg") not in self._algorithms:
            raise ValueError("the token's signature algorithm is not accepted")
        name = header.get("kid")
        if name is None and len(keys) == 1:
            return next(iter(keys))
        if not isinstance(name, str) or name not in keys:
            raise ValueError("the token is signed with a key that is not known")
        return name


def _parse_keys(contents: Mapping[str, bytes]) -> Mapping[str, JsonWebKey]:
    """Public keys by name ("" for one without), except those for encryption or of an unknown type."""
    try:
        declared = json.loads(contents[JWKS_FLAG])["keys"]
        signing = [key for key in declared if key.get("use", "sig") == "sig" and key.get("kty") != "oct"]
        keys = [key for key in signing if _known(key)]
        named = {key.get("kid") or "": key for key in keys}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnusableFile(JWKS_FLAG, "it is not a JSON web key set (RFC 7517)") from None
    if not named:
        raise UnusableFile(JWKS_FLAG, "it holds no public key for signatures")
    if len(named) < len(keys):
        raise UnusableFile(JWKS_FLAG, "two of its keys have the same name (kid), or lack one: expected distinct names")
    if others := [str(key.get("kid"))[:MAX_LOGGED_KID] for key in signing if key not in keys]:
        log.warning("web token keys of an unknown kind are left out", kids=others[:MAX_LOGGED_KIDS])
    return named


def _known(key: JsonWebKey) -> bool:
    """Whether signatures can be checked with a key."""
    try:
        jwt.PyJWK(key)
    except (jwt.PyJWTError, ValueError, KeyError, TypeError):
        return False
    return True
