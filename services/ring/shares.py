"""How much of one bounded thing each tenant holds: what a tenant takes may not be more than what it leaves free.

So one tenant alone gets half of it, two get a third each, and whoever comes next finds room, whatever the others want.
(Dynamic thresholds for the queues of a shared-memory switch: Choudhury and Hahne, IEEE/ACM ToN 6, 1998.)
"""

from __future__ import annotations


class Shares:
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
