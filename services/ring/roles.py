"""Authorization between services: a peer's certificate gives its roles and the names it may attach under.

A name in a certificate grants a role: a peer with ``spiffe://ringline/processor`` may attach as ``processor`` or
``processor-…``. A peer's name can be appended: ``spiffe://ringline/processor/blue`` grants the role to ``blue`` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from services.ring.errors import Code, Refused
from services.ring.identity import PEER_NAME

_SHOWN_NAMES, _SHOWN_LENGTH = 4, 100
"""Bounds on what error messages quote from a certificate."""


class Role(StrEnum):
    """The role of a caller of an engine or a detokenizer."""

    PROCESSOR = "processor"
    DETOKENIZER = "detokenizer"
    OPERATOR = "operator"


SERVICE_IDENTITIES = tuple(f"{role}=spiffe://ringline/{role}" for role in Role)
"""The names that ``ringline certs`` writes into certificates, with their roles."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one name in a certificate allows."""

    role: Role
    name: str | None = None
    """The only peer name that this allows; None: every name of the role."""

    def covers(self, name: str) -> bool:
        """Whether a peer may attach under ``name``."""
        return name == self.name if self.name is not None else name == self.role or name.startswith(f"{self.role}-")


@dataclass(frozen=True, slots=True)
class PeerPrincipal:
    """A caller authenticated by its certificate."""

    shown: str
    """The certificate's names, as error messages quote them."""
    grants: tuple[Grant, ...]

    def check_role(self, what: str, roles: Collection[Role]) -> None:
        """Raise ``Refused`` unless the caller has one of ``roles``; ``what`` names the action in the message."""
        if not any(grant.role in roles for grant in self.grants):
            problem = f"the certificate of {self.shown} does not allow {what}"
            raise Refused(Code.PERMISSION_DENIED, f"{problem}: expected the role {' or '.join(sorted(roles))}")

    def check_name(self, name: str, roles: Collection[Role]) -> None:
        """Raise ``Refused`` unless the caller may attach as ``name`` in one of ``roles``."""
        grants = [grant for grant in self.grants if grant.role in roles]
        if not any(grant.covers(name) for grant in grants):
            allowed = " or ".join(grant.name or f"{grant.role}-…" for grant in grants)
            problem = f"the certificate of {self.shown} does not allow the name {name!r}"
            raise Refused(Code.PERMISSION_DENIED, f"hello.name: {problem}: expected {allowed}")


principal: ContextVar[PeerPrincipal | None] = ContextVar("principal", default=None)
"""The caller of the RPC handled in this context; None without client certificates, when everything is allowed."""


def check_role(what: str, roles: Collection[Role]) -> None:
    """Raise ``Refused`` unless the caller of this RPC has one of ``roles``."""
    if (caller := principal.get()) is not None:
        caller.check_role(what, roles)


def has_role(roles: Collection[Role]) -> bool:
    """Whether ``check_role`` would allow the caller of this RPC what ``roles`` may do."""
    caller = principal.get()
    return caller is None or any(grant.role in roles for grant in caller.grants)


def check_name(name: str, roles: Collection[Role]) -> None:
    """Raise ``Refused`` unless the caller of this RPC may attach as ``name`` in one of ``roles``."""
    if (caller := principal.get()) is not None:
        caller.check_name(name, roles)


class Identities:
    """The mapping of certificate names to roles."""

    def __init__(self, identities: Sequence[str]) -> None:
        """``identities``: each ``ROLE=NAME``; raises ``ValueError`` with the first invalid one."""
        self._roles: dict[str, set[Role]] = {}
        for identity in identities:
            role, equals, name = identity.partition("=")
            if not equals or not name or role not in set(Role):
                raise ValueError(identity)
            self._roles.setdefault(name, set()).add(Role(role))

    def principal(self, names: Iterable[str]) -> PeerPrincipal:
        """The principal of a certificate with these names; raises ``Refused`` if none of them maps to a role."""
        names = sorted(set(names))
        grants = [grant for name in names for grant in self._grants(name)]
        # A URI names an identity, a DNS name only a host.
        identifying = [name for name in names if "://" in name] or names
        shown = ", ".join(name[:_SHOWN_LENGTH] for name in identifying[:_SHOWN_NAMES]) or "no name"
        if not grants:
            problem = f"the certificate of {shown} has no role in this ring"
            raise Refused(Code.PERMISSION_DENIED, f"{problem}: expected the name {' or '.join(self._roles)}")
        return PeerPrincipal(shown, tuple(grants))

    def _grants(self, name: str) -> list[Grant]:
        if name in self._roles:
            return [Grant(role) for role in sorted(self._roles[name])]
        identity, _, peer = name.rpartition("/")
        return [Grant(role, peer) for role in sorted(self._roles.get(identity, ())) if PEER_NAME.fullmatch(peer)]
