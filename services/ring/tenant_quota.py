"""Fair use of one bounded resource: a tenant may hold at most as much as all tenants together leave free.

One tenant alone gets half of the resource, two get a third each, and a tenant that comes later always finds room.
(Dynamic thresholds, from shared-memory switches: Choudhury and Hahne, IEEE/ACM ToN 6, 1998.)
"""

from __future__ import annotations

from collections.abc import Callable

from services.ring.errors import Code, Reason, Refused


class TenantQuota:
    """Counts what each tenant holds; a tenant that holds nothing takes no memory here."""

    def __init__(self, most: int) -> None:
        """``most``: the size of the resource."""
        self.most = most
        self.total = 0
        """The amount that all tenants hold together."""
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        """Tenants that hold something."""
        return len(self._held)

    def held(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    def has_room(self, tenant: str, amount: int, freed: int = 0) -> bool:
        """Whether a tenant may take ``amount`` after giving back ``freed``.

        While nothing is held, any amount may be taken; otherwise a request above the threshold could never run.
        """
        total = self.total - freed
        return total == 0 or amount == 0 or self.held(tenant) - freed + amount <= self.most - total

    def take(self, tenant: str, amount: int) -> None:
        if amount:
            self.total += amount
            self._held[tenant] = self.held(tenant) + amount

    def give_back(self, tenant: str, amount: int) -> None:
        if amount:
            self.total -= amount
            self._held[tenant] -= amount
            if not self._held[tenant]:
                del self._held[tenant]


class TenantMemoryQuota(TenantQuota):
    """A dynamic threshold over the bytes that requests hold in memory; refuses with RESOURCE_EXHAUSTED."""

    def __init__(self, field: str, who: str, what: str, most: int, retry_after_ms: Callable[[str], int]) -> None:
        """``most``: bytes of all tenants together; ``retry_after_ms``: the delay for a refused tenant.

        A refusal's message names the request's ``field``, the process (``who``) and what the bytes hold (``what``).
        """
        super().__init__(most)
        self._field, self._who, self._what = field, who, what
        self._retry_after_ms = retry_after_ms

    def has_room(self, tenant: str, amount: int, freed: int = 0) -> bool:
        """As for places; but a request's bytes may be much of all, so they count as taken: the last request that finds
        room must not take what is left to the last byte.
        """
        total = self.total - freed
        return total == 0 or amount == 0 or self.held(tenant) - freed + amount <= self.most - total - amount

    def check(self, tenant: str, wanted: int, freed: int = 0) -> None:
        """Raise ``Refused`` unless a tenant may hold ``wanted`` more bytes after giving back ``freed``."""
        if not self.has_room(tenant, wanted, freed):
            held, free = self.held(tenant) - freed, max(0, self.most - self.total + freed)
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{self._field}: this request takes {wanted} bytes of {self._what}; {self._who} has room for "
                f"{max(0, free - held) // 2} more of this tenant's now ({free} of {self.most} bytes are free, and its "
                f"other requests hold {held}); retry later or ask for less",
                retry_after_ms=self._retry_after_ms(tenant),
                reason=Reason.QUOTA,
            )
