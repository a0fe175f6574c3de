"""How much of one bounded thing each tenant holds: what a tenant takes may not be more than what it leaves free.

So one tenant alone gets half of it, two get a third each, and whoever comes next finds room, whatever the others want.
(Dynamic thresholds for the queues of a shared-memory switch: Choudhury and Hahne, IEEE/ACM ToN 6, 1998.)
"""

from __future__ import annotations

from collections.abc import Callable

from services.ring.errors import Code, Reason, Refused


class DynamicThreshold:
    """Counts what tenants hold. Only those that hold something are remembered."""

    def __init__(self, most: int) -> None:
        """``most`` of it there is."""
        self.most = most
        self.total = 0
        """What all hold together."""
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        """Tenants that hold something."""
        return len(self._held)

    def held(self, tenant: str) -> int:
        """What one tenant holds."""
        return self._held.get(tenant, 0)

    def has_room(self, tenant: str, amount: int, freed: int = 0) -> bool:
        """Whether a tenant may take ``amount``, once it has given back ``freed``.

        While nobody holds anything, any amount may be taken: what is larger than a share must have its turn, too.
        """
        total = self.total - freed
        return total == 0 or amount == 0 or self.held(tenant) - freed + amount <= self.most - total

    def take(self, tenant: str, amount: int) -> None:
        """A tenant holds so much more."""
        if amount:
            self.total += amount
            self._held[tenant] = self.held(tenant) + amount

    def give_back(self, tenant: str, amount: int) -> None:
        """A tenant holds so much less."""
        if amount:
            self.total -= amount
            self._held[tenant] -= amount
            if not self._held[tenant]:
                del self._held[tenant]


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
        self._shares = DynamicThreshold(most)

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
