"""Authorizes the services of the ring: which of them may call which method, by certificate, token or both."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence

from services.common.rpc.handlers import Context
from services.common.security.file_reload import ReloadedFile
from services.common.security.tokens import AUTHORIZATION, bearer_token
from services.ring.errors import Code, Refused
from services.ring.roles import Identities, Role, principal

_CERTIFICATE_NAMES = "x509_subject_alternative_name"
"""gRPC's key for the names of a caller's certificate."""
_OPERATOR = frozenset({Role.OPERATOR})


class ServiceAuthorizer:
    """Authorizes callers by their certificate, their token or both, as configured."""

    def __init__(
        self,
        identities: Identities | None,
        tokens: ReloadedFile[tuple[str, ...]] | None,
        roles: Mapping[str, Collection[Role]],
    ) -> None:
        """``identities``: None if no certificate is required. ``roles``: the roles that may call each method.

        Operators may call methods that ``roles`` does not name.
        """
        self._identities = identities
        self._tokens = tokens
        self._roles = roles

    def authorize(self, context: Context, method: str) -> None:
        """Raise ``Refused`` unless the caller may call ``method``; else set its principal for the handler."""
        if self._identities is not None:
            names = (name.decode("utf-8", "replace") for name in context.auth_context().get(_CERTIFICATE_NAMES, ()))
            caller = self._identities.principal(names)
            caller.check_role(method, self._roles.get(method, _OPERATOR))
            principal.set(caller)
        if self._tokens is not None:
            self._check_token(context, self._tokens.value)

    def _check_token(self, context: Context, known: Sequence[str]) -> None:
        try:
            shown = bearer_token(context.invocation_metadata() or ())
        except ValueError as error:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: {error}") from None
        if shown is None:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: missing: expected the services' token")
        # Compare all tokens, each in constant time: the duration must not reveal how much of a token was right.
        matches = [hmac.compare_digest(shown.encode(), token.encode()) for token in known]
        if True not in matches:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: unknown token: expected the services' token")
