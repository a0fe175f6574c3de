"""Which callers are services of this ring: by the names in their certificates, or by the services' token."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence

from services.ring.events import Code, Refused
from services.runtime.gate import Context
from services.runtime.roles import Identities, Role, principal
from services.runtime.tokens import AUTHORIZATION, token_in
from services.runtime.watched import Watched

_NAMES = "x509_subject_alternative_name"
"""Where gRPC puts the names in a caller's certificate."""
_OPERATOR = frozenset({Role.OPERATOR})


class ServiceIdentity:
    """Lets in services alone: what is asked for, certificate or token or both, each must be shown."""

    def __init__(
        self,
        identities: Identities | None,
        tokens: Watched[tuple[str, ...]] | None,
        roles: Mapping[str, Collection[Role]],
    ) -> None:
        """``identities``: None where no certificate is asked for. ``roles``: who may call each method.

        An operator may call the others.
        """
        self._identities = identities
        self._tokens = tokens
        self._roles = roles

    def admit(self, context: Context, method: str) -> None:
        """Raise ``Refused`` unless a service calls that may, and let it be known which."""
        if self._identities is not None:
            names = (name.decode("utf-8", "replace") for name in context.auth_context().get(_NAMES, ()))
            caller = self._identities.principal(names)
            caller.check_role(method, self._roles.get(method, _OPERATOR))
            principal.set(caller)
        if self._tokens is not None:
            self._check_token(context, self._tokens.value)

    def _check_token(self, context: Context, known: Sequence[str]) -> None:
        try:
            shown = token_in(context.invocation_metadata() or ())
        except ValueError as error:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: {error}") from None
        if shown is None:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: missing: expected the services' token")
        # Every one is compared, in a time that says nothing of how much of which was right.
        matches = [hmac.compare_digest(shown.encode(), token.encode()) for token in known]
        if True not in matches:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: the token is not that of the services")
