"""Running places, KV blocks and room in each step that a tenant leaves to others.

Otherwise a flood of requests would take every place in one step. As its sequences begin together, no place would become
free until they end, and its long prompts would fill every step. So while another tenant has brought a request lately

- a tenant that runs its share leaves a sixteenth of the places and of the blocks free, and
- a tenant's prompts fill at most a quarter of a step.

A tenant that has been alone for a while may use everything. ``request_queue`` orders waiting requests.
"""

from __future__ import annotations

import math
from collections import Counter

LATELY = 60.0
"""Seconds after a tenant's request during which another is expected."""


class TenantShares:
    """How much of the engine each tenant may use."""

    def __init__(self, max_num_seqs: int, num_blocks: int, prompt_tokens: int) -> None:
        """``prompt_tokens``: the most tokens of a step for one tenant's prompts."""
        self._max_num_seqs = max_num_seqs
        self._num_blocks = num_blocks
        self._prompt_tokens = prompt_tokens
        self._planned: Counter[str] = Counter()
        """Prompt tokens of each tenant in the step that is being planned."""
        self._now = -math.inf
        self._last = self._last_of_others = "", -math.inf
        """Tenant and time of the last request, and of the last request of any other tenant."""

    def came(self, tenant: str, now: float) -> None:
        """Record a request of ``tenant``."""
        if tenant != self._last[0]:
            self._last_of_others = self._last
        self._last = tenant, now

    def others_came(self, tenant: str) -> bool:
        """Whether another tenant brought a request lately."""
        other, at = self._last
        if other == tenant:
            _, at = self._last_of_others
        return self._now - at < LATELY

    def begin_step(self, now: float) -> None:
        self._now = now
        self._planned.clear()

    def prompt_room(self, tenant: str, wanted: int, least: int = 1) -> int:
        """How many of ``wanted`` further prompt tokens the step may compute for ``tenant``.

        Fewer than ``least`` cannot be computed: the tenant's first in a step may be as many, whatever its part.
        """
        if not self.others_came(tenant):
            return wanted
        planned = self._planned[tenant]
        return min(wanted, max(0, self._prompt_tokens - planned, 0 if planned else least))

    def plan_prompt(self, tenant: str, tokens: int) -> None:
        """Count ``tokens`` of a prompt of ``tenant`` in the step."""
        self._planned[tenant] += tokens

    def places_kept(self, tenant: str, running: Counter[str]) -> int:
        """Places that a further sequence of ``tenant`` must leave free; ``running``: sequences by tenant."""
        return self._kept(tenant, running[tenant], self._max_num_seqs, len(running))

    def blocks_kept(self, tenant: str, running: Counter[str], held: int) -> int:
        """Blocks that a further sequence of ``tenant`` must leave free; its running sequences hold ``held``."""
        return self._kept(tenant, held, self._num_blocks, len(running))

    def _kept(self, tenant: str, held: int, count: int, num_tenants: int) -> int:
        """A sixteenth of ``count``, if others came lately and ``tenant`` holds its equal share of the rest (≤ ½)."""
        kept = (count + 8) // 16
        has_its_share = held >= max(1, (count - kept) // max(2, num_tenants))
        return kept if has_its_share and self.others_came(tenant) else 0
