"""What a service may do in a ring, by its role, and under which names it attaches: its certificate says both.

A name in a certificate stands for a role. Such a peer attaches under a name that begins with its role's and a dash:
``spiffe://ringline/processor`` as ``processor-7``. With the name of a peer behind it, it stands for that peer alone:
``spiffe://ringline/processor/blue`` for ``blue``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from services.ring.errors import Code, Refused
from services.ring.identity import PEER_NAME

_SHOWN_NAMES, _SHOWN_LENGTH = 4, 100
"""Of a stranger's certificate, in messages."""


class Role(StrEnum):
    """What a caller of an engine or a detokenizer is."""

    PROCESSOR = "processor"
    DETOKENIZER = "detokenizer"
    OPERATOR = "operator"


SERVICE_IDENTITIES = tuple(f"{role}=spiffe://ringline/{role}" for role in Role)
"""As ``ringline certs`` writes them into certificates."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one name of a certificate stands for."""

    role: Role
    name: str | None = None
    """The one peer that it is for; None for every peer of the role."""

    def covers(self, name: str) -> bool:
        """Whether a peer may have this name."""
        return name == self.name if self.name is not None else name == self.role or name.startswith(f"{self.role}-")


@dataclass(frozen=True, slots=True)
class PeerPrincipal:
    """A caller that showed a certificate."""

    shown: str
    """The names in it, for messages."""
    grants: tuple[Grant, ...]

    def check_role(self, what: str, roles: Collection[Role]) -> None:
        """Raise ``Refused`` unless it has one of these roles, which are those that may do ``what``."""
        if not any(grant.role in roles for grant in self.grants):
            problem = f"the certificate of {self.shown} does not allow {what}"
            raise Refused(Code.PERMISSION_DENIED, f"{problem}: expected the role {' or '.join(sorted(roles))}")

    def check_name(self, name: str, roles: Collection[Role]) -> None:
        """Raise ``Refused`` unless it may attach under a name, in one of these roles."""
        grants = [grant for grant in self.grants if grant.role in roles]
        if not any(grant.covers(name) for grant in grants):
            allowed = " or ".join(grant.name or f"{grant.role}-…" for grant in grants)
            problem = f"the certificate of {self.shown} does not allow the name {name!r}"
            raise Refused(Code.PERMISSION_DENIED, f"hello.name: {problem}: expected {allowed}")


principal: ContextVar[PeerPrincipal | None] = ContextVar("principal", default=None)
"""Who makes the RPC that is handled in this context; None where no certificate is asked for: then all may do all."""


def check_role(what: str, roles: Collection[Role]) -> None:
    """Raise ``Refused`` unless the caller has one of these roles."""
    if (caller := principal.get()) is not None:
        caller.check_role(what, roles)


def check_name(name: str, roles: Collection[Role]) -> None:
    """Raise ``Refused`` unless the caller may attach under a name, in one of these roles."""
    if (caller := principal.get()) is not None:
        caller.check_name(name, roles)


class Identities:
    """The names in certificates that stand for roles."""

    def __init__(self, identities: Sequence[str]) -> None:
        """Each is ``ROLE=NAME``; raises ``ValueError`` with the one that is not."""
        self._roles: dict[str, set[Role]] = {}
        for identity in identities:
            role, equals, name = identity.partition("=")
            if not equals or not name or role not in set(Role):
                raise ValueError(identity)
            self._roles.setdefault(name, set()).add(Role(role))

    def principal(self, names: Iterable[str]) -> PeerPrincipal:
        """Who has a certificate with these names. Raises ``Refused`` for nobody of this ring."""
        names = sorted(set(names))
        grants = [grant for name in names for grant in self._grants(name)]
        shown = ", ".join(name[:_SHOWN_LENGTH] for name in _telling(names)[:_SHOWN_NAMES]) or "no name"
        if not grants:
            problem = f"the certificate of {shown} is not that of a service of this ring"
            raise Refused(Code.PERMISSION_DENIED, f"{problem}: expected one of {', '.join(self._roles)}")
        return PeerPrincipal(shown, tuple(grants))

    def _grants(self, name: str) -> list[Grant]:
        if name in self._roles:
            return [Grant(role) for role in sorted(self._roles[name])]
        identity, _, peer = name.rpartition("/")
        return [Grant(role, peer) for role in sorted(self._roles.get(identity, ())) if PEER_NAME.fullmatch(peer)]


def _telling(names: list[str]) -> list[str]:
    """Those that say who somebody is, if there are any, rather than where a service is reached."""
    return [name for name in names if "://" in name] or names
