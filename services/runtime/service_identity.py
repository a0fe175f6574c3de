"""Which callers are services of this ring: by a name in their certificate, or by the services' token."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from services.ring.events import Code, Refused
from services.runtime.gate import Context
from services.runtime.tokens import AUTHORIZATION, token_in
from services.runtime.watched import Watched

_NAMES = "x509_subject_alternative_name"
"""Where gRPC puts the names in a caller's certificate."""


class ServiceIdentity:
    """Lets in services alone: what is asked for, certificate or token or both, each must be shown."""

    def __init__(self, identities: Sequence[str] | None, tokens: Watched[tuple[str, ...]] | None) -> None:
        """``identities``: names of which a certificate must have one; None where no certificate is asked for."""
        self._identities = None if identities is None else frozenset(identities)
        self._tokens = tokens

    def admit(self, context: Context) -> None:
        """Raise ``Refused`` unless a service calls."""
        if self._identities is not None:
            names = {name.decode("utf-8", "replace") for name in context.auth_context().get(_NAMES, ())}
            if not names & self._identities:
                raise Refused(Code.PERMISSION_DENIED, "the caller's certificate is not that of a service of this ring")
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
