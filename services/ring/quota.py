"""What the requests of a process hold together of one thing, within a size."""

from __future__ import annotations

from collections.abc import Callable

from services.ring.events import Code, Reason, Refused
from services.ring.shares import Shares


class Quota:
    """Counts bytes. A request that alone takes more than there may be is taken while nobody else holds any.

    One tenant may hold as much as it leaves free.
    """

    def __init__(self, field: str, who: str, what: str, most: int, retry_after_ms: Callable[[str], int]) -> None:
        """``field`` that asks for it; ``who`` holds ``what``, in words; ``most`` bytes together.

        ``retry_after_ms`` says when a tenant that is refused should come again.
        """
        self._field, self._who, self._what = field, who, what
        self._retry_after_ms = retry_after_ms
        self._shares = Shares(most)

    def resize(self, most: int) -> None:
        """There may be ``most`` bytes together."""
        self._shares.most = most

    @property
    def most(self) -> int:
        """Bytes that there may be together."""
        return self._shares.most

    def check(self, tenant: str, wanted: int, freed: int = 0) -> None:
        """Raise ``Refused`` unless a tenant may hold ``wanted`` bytes more, once it has given back ``freed``."""
        shares = self._shares
        if not shares.has_room(tenant, wanted, freed):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{self._field}: {self._who} holds {shares.total - freed} bytes of {self._what} for other requests, "
                f"{shares.held(tenant) - freed} of them for this tenant, and these take {wanted}: expected at most "
                f"{shares.most} together, and a tenant's no more than it leaves free",
                retry_after_ms=self._retry_after_ms(tenant),
                reason=Reason.QUOTA,
            )

    def take(self, tenant: str, size: int) -> None:
        """A request holds so many bytes."""
        self._shares.take(tenant, size)

    def give_back(self, tenant: str, size: int) -> None:
        """It is gone."""
        self._shares.give_back(tenant, size)
