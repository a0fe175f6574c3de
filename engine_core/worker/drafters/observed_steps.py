"""Which steps a drafter observes that reads the target's final hidden states.

All rows of such a step go through all of the last layer, on every rank of a stage, so these must agree: they do by what
every rank knows, the plans.
"""

from __future__ import annotations

from engine_core.step import StepPlan

_FEW = 8
"""Steps with up to so many sequences are observed always: drafts may pay at any moment."""
_PATIENCE = 16
"""Larger steps that are observed although no drafts are asked for: where many run, observing would only cost."""


class ObservedSteps:
    """Goes through all steps, in order."""

    def __init__(self) -> None:
        self._unasked = _PATIENCE

    def includes(self, plan: StepPlan) -> bool:
        """Whether the step of ``plan``, the next one, is observed."""
        self._unasked = 0 if plan.proposals else self._unasked + 1
        return len(plan.seq_ids) <= _FEW or self._unasked < _PATIENCE
