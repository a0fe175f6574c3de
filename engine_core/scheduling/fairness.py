"""Fairness across tenants: capacity reserved for other tenants while they bring requests.

Otherwise a flood would take every running place in one step. Since its sequences begin together, it would free no place
until they all end, and its long prompts would fill every step. So the last sixteenth of places and blocks is reserved:
a tenant that already has its share does not get it. And a tenant's prompts fill at most a quarter of a step. A tenant
that was alone for a while has no such limits. ``request_queue`` orders waiting requests: deficit round-robin across
tenants, over tokens.

If every running tenant wants more than its quarter, the rest of the step is handed out in a second pass, in equal
parts. If one does not, because it computes outputs or a short prompt, the rest stays empty: a longer step would make
that tenant wait for the prompts of others. (A tenant that only waits, for a place or for blocks, gains from a longer
step.) The rest also stays empty if a tenant without requests has come back regularly and is likely to do so during the
step.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import pairwise, takewhile

LATELY = 60.0
"""Seconds after a tenant's request during which another one is expected."""
_SILENCE = 10
"""Absent tenants are not expected back soon after a silence of this many times the longest interval between their last
requests."""
_REMEMBERED = 4
"""Number of last arrivals that count: intervals vary, so a single short one is no evidence."""


def _kept(count: int) -> int:
    return (count + 8) // 16


class Tenants:
    """Tracks which tenants have requests and running sequences, and the room that each may not use."""

    def __init__(self, max_num_seqs: int, num_blocks: int, prompt_tokens: int) -> None:
        """``prompt_tokens``: the most tokens of a step for one tenant's prompts."""
        self._max_num_seqs = max_num_seqs
        self._num_blocks = num_blocks
        self._prompt_tokens = prompt_tokens
        self._requests: Counter[str] = Counter()
        """Number of live requests, keyed by tenant; only tenants that have any."""
        self._running: Counter[str] = Counter()
        """Number of running sequences, keyed by tenant; only tenants that have any."""
        self._planned: Counter[str] = Counter()
        """Prompt tokens of each tenant in the step that is being planned."""
        self._limit = prompt_tokens
        """The most prompt tokens that each tenant may have in this step."""
        self._wants_more: set[str] = set()
        """Tenants that could use more than the limit."""
        self._now = -math.inf
        self._arrivals: deque[tuple[str, float]] = deque(maxlen=4 * _REMEMBERED)
        """Tenant and time of the last requests; at most ``_REMEMBERED`` in a row are one tenant's."""

    def came(self, tenant: str, now: float) -> None:
        """``tenant`` brought a request, which is live from now on."""
        self._requests[tenant] += 1
        arrivals = self._arrivals
        in_a_row = sum(1 for _ in takewhile(lambda arrival: arrival[0] == tenant, reversed(arrivals)))
        if in_a_row == _REMEMBERED:
            del arrivals[-_REMEMBERED]
        arrivals.append((tenant, now))

    def left(self, tenant: str) -> None:
        """A request of ``tenant`` has ended."""
        self._requests[tenant] -= 1
        if not self._requests[tenant]:
            del self._requests[tenant]

    def started(self, tenant: str) -> None:
        """A sequence of ``tenant`` begins to run."""
        self._running[tenant] += 1

    def stopped(self, tenant: str) -> None:
        """A sequence of ``tenant`` stops running."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def begin_step(self, now: float) -> None:
        """The planning of a step begins."""
        self._now = now
        self._planned.clear()
        self._limit = self._prompt_tokens
        self._wants_more.clear()

    def plan_prompt(self, tenant: str, tokens: int) -> None:
        """Count ``tokens`` tokens of a prompt of ``tenant`` in the step."""
        self._planned[tenant] += tokens

    def prompt_room(self, tenant: str, wanted: int) -> int:
        """How many of ``wanted`` further prompt tokens the step may compute for ``tenant``."""
        if not self.others_came(tenant):
            return wanted
        room = max(0, self._limit - self._planned[tenant])
        if wanted > room:
            self._wants_more.add(tenant)
        return min(wanted, room)

    def hand_out(self, left: int) -> bool:
        """Raise the limit by equal parts of the step's ``left`` tokens, unless that would delay another tenant."""
        limited = sum(self._planned[tenant] >= self._limit for tenant in self._wants_more)
        if not left or not limited or limited < len(self._running) or self._absent_return():
            return False
        self._limit += max(1, left // limited)
        return True

    def may_start(self, tenant: str, free: int) -> bool:
        """Whether a further sequence of ``tenant`` may have one of ``free`` places."""
        return free > _kept(self._max_num_seqs) or not self._has_its_share(
            tenant, self._running[tenant], self._max_num_seqs
        )

    def blocks_kept(self, tenant: str, held: int) -> int:
        """Blocks that the next sequence of ``tenant`` must leave free when it starts; its other ones hold ``held``."""
        return _kept(self._num_blocks) if self._has_its_share(tenant, held, self._num_blocks) else 0

    def others_came(self, tenant: str) -> bool:
        """Whether another tenant brought a request lately."""
        at = next((at for name, at in reversed(self._arrivals) if name != tenant), -math.inf)
        return self._now - at < LATELY

    def _absent_return(self) -> bool:
        """Whether a tenant that has no requests now is likely to bring one soon."""
        times = [at for name, at in reversed(self._arrivals) if name not in self._requests][:_REMEMBERED]
        longest = max((later - earlier for later, earlier in pairwise(times)), default=0.0)
        return bool(times) and self._now - times[0] < _SILENCE * longest

    def _has_its_share(self, tenant: str, held: int, count: int) -> bool:
        """Whether ``held`` is the tenant's share: an equal part of the unreserved capacity, at most half of it."""
        part = (count - _kept(count)) // max(2, len(self._running))
        return held >= max(1, part) and self.others_came(tenant)
