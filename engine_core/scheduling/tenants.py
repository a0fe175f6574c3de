"""What one tenant may not take while another was here lately: room for whoever comes next.

A flood would else take every running place in one step, and as its sequences begin together, none would give its place
back before they end together; and its long prompts would fill step after step. So the last sixteenth of places and
blocks is kept from a tenant that has its share of them already, and its prompts fill at most a quarter of a step. A
tenant that was alone for a while is kept from nothing.
"""

from __future__ import annotations

import math
from collections import Counter

LATELY = 60.0
"""Seconds for which a tenant that brought a request is expected to bring another."""


def _kept(count: int) -> int:
    return (count + 8) // 16


class Tenants:
    """Who came, who runs, and what is kept from whom."""

    def __init__(self, max_num_seqs: int, num_blocks: int, prompt_tokens: int) -> None:
        """``prompt_tokens``: as many may one tenant's prompts have of a step."""
        self._max_num_seqs = max_num_seqs
        self._num_blocks = num_blocks
        self._prompt_tokens = prompt_tokens
        self._running: Counter[str] = Counter()
        """Sequences; tenants that have any."""
        self._planned: Counter[str] = Counter()
        """Tokens of prompts in the step that is being planned."""
        self._now = -math.inf
        self._last: str | None = None
        """Who brought the last request, when, and when somebody else did before: enough to answer for each tenant."""
        self._last_at = self._other_at = -math.inf

    def came(self, tenant: str, now: float) -> None:
        """It brought a request."""
        if tenant != self._last:
            self._last, self._other_at = tenant, self._last_at
        self._last_at = now

    def started(self, tenant: str) -> None:
        """A sequence of it runs."""
        self._running[tenant] += 1

    def stopped(self, tenant: str) -> None:
        """One runs no more."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def begin_step(self, now: float) -> None:
        """A step is going to be planned."""
        self._now = now
        self._planned.clear()

    def plan_prompt(self, tenant: str, tokens: int) -> None:
        """The step computes so many tokens of a prompt of it."""
        self._planned[tenant] += tokens

    def prompt_room(self, tenant: str, budget: int) -> int:
        """How many more they may be, of ``budget`` that the step has left."""
        if not self.others_came(tenant):
            return budget
        return min(budget, max(0, self._prompt_tokens - self._planned[tenant]))

    def may_start(self, tenant: str, free: int) -> bool:
        """Whether a further sequence of it may have one of ``free`` places."""
        return free > _kept(self._max_num_seqs) or not self._has_its_share(
            tenant, self._running[tenant], self._max_num_seqs
        )

    def blocks_kept(self, tenant: str, held: int) -> int:
        """Blocks that its next sequence must leave free when it starts, if its others hold so many."""
        return _kept(self._num_blocks) if self._has_its_share(tenant, held, self._num_blocks) else 0

    def others_came(self, tenant: str) -> bool:
        """Whether another tenant brought a request lately."""
        at = self._other_at if tenant == self._last else self._last_at
        return self._now - at < LATELY

    def _has_its_share(self, tenant: str, held: int, count: int) -> bool:
        """Of those that run a tenant has an equal part of what is not kept, and half of it where it runs alone."""
        part = (count - _kept(count)) // max(2, len(self._running))
        return held >= max(1, part) and self.others_came(tenant)
