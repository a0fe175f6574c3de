"""Whether a request got what its adapter computes, or was refused for a reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from tests.chaos.adapters.names import CONTENTS, NAMES
from tests.chaos.adapters.requests import AdapterSpec, Answers
from tests.chaos.adapters.sightings import Sightings
from tests.chaos.outcome import Defect, Outcome, find_defects
from tests.chaos.workload import RequestSpec

LAG = 8.0
"""Seconds in which processors may believe what was so: wires are delayed for 5 s, or held until a peer is suspected."""
_NOT_THERE = ("ADAPTER_NOT_FOUND", "MODEL_NOT_FOUND")
_NOT_YET_THERE = "attached have no adapter"
"""In the error of a processor some of whose engines are away: they may have it."""
_GONE = "ADAPTER_GONE"


class Judge:
    """Of a run's requests, with adapters and without."""

    def __init__(
        self, plain: Mapping[str, Outcome], answers: Answers, digests: Mapping[str, str], sightings: Sightings
    ) -> None:
        """``plain``: the right answers of requests without adapters, by name; ``digests``: by contents."""
        self._plain = plain
        self._answers = answers
        self._contents = {digest: contents for contents, digest in digests.items()}
        self._sightings = sightings
        self.counts: Counter[str] = Counter()
        """Requests with adapters, and what became of them."""

    async def __call__(self, spec: RequestSpec, outcome: Outcome, *, cancelled: bool) -> dict[Defect, str]:
        """A request's defects."""
        if not isinstance(spec, AdapterSpec):
            found = find_defects(outcome, self._plain[spec.name], cancelled=cancelled)
            return found if outcome.adapter is None else found | {Defect.ALTERED: f"it got {outcome.adapter}"}
        self.counts["with adapters"] += 1
        self.counts["moved"] += outcome.moved
        ended = time.monotonic()
        if outcome.error or self._wrong_adapter(spec, outcome, ended) is not None:
            await self._sightings.until(ended)
        if (wrong := self._wrong_adapter(spec, outcome, ended)) is not None:
            return {Defect.ALTERED: wrong}
        if outcome.adapter is None:
            return self._refused(spec, outcome, ended, cancelled=cancelled)
        right = self._answers[spec.kind, outcome.adapter.digest]
        if outcome.reason != _GONE:
            return find_defects(outcome, right, cancelled=cancelled)
        return self._gone(spec, outcome, ended) | find_defects(outcome.without_error(), right, cancelled=True)

    def _wrong_adapter(self, spec: AdapterSpec, outcome: Outcome, ended: float) -> str | None:
        """In words, if it got what its name did not stand for, or what its tenant may not use."""
        adapter, since = outcome.adapter, outcome.began - LAG
        if adapter is None:
            return "the base answered" if outcome.num_ids or outcome.models else None
        if not spec.is_permitted:
            return f"tenant {spec.tenant!r} got {adapter}"
        contents = self._contents.get(adapter.digest, "none")
        if adapter.name != spec.adapter or CONTENTS.get(contents) != spec.adapter:
            return f"it got {adapter} of {contents}"
        if adapter.digest not in self._sightings.digests(spec.adapter, since, ended):
            return f"it got {contents}, which its name did not stand for"
        return None

    def _refused(self, spec: AdapterSpec, outcome: Outcome, ended: float, *, cancelled: bool) -> dict[Defect, str]:
        """Of a request that got nothing."""
        if outcome.reason in _NOT_THERE or _NOT_YET_THERE in outcome.error:
            if names := list(_names_of_others(spec, outcome.error)):
                return {Defect.ALTERED: f"tenant {spec.tenant!r} was told of {names}"}
            if not spec.is_permitted:
                self.counts["not permitted"] += 1
                return {}
            if not self._sightings.stands(spec.adapter, outcome.began - LAG, ended):
                self.counts["not there"] += 1
                return {}
        elif cancelled and not outcome.error and not outcome.stuck:
            return {}
        return {Defect.STUCK if outcome.stuck else Defect.LOST: outcome.error or "it ended with nothing"}

    def _gone(self, spec: AdapterSpec, outcome: Outcome, ended: float) -> dict[Defect, str]:
        """Of a request whose adapter no engine has any more: it was replaced, and engines that had it were lost."""
        assert outcome.adapter is not None
        if self._sightings.is_known(spec.adapter, outcome.adapter.digest, outcome.began - LAG, ended):
            return {Defect.LOST: outcome.error}
        self.counts["gone"] += 1
        return {}


def _names_of_others(spec: AdapterSpec, error: str) -> Iterator[str]:
    for each in NAMES.values():
        if spec.tenant not in each.tenants and each.name != spec.adapter and f"'{each.name}'" in error:
            yield each.name
