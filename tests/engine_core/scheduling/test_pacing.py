"""Slow grammars take turns with all others, and what they answer stays the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from .harness import Harness


class SlowGrammars(Harness):
    """The grammars of requests named ``slow…`` take a second in each step, and time stands still otherwise."""

    def plan_ahead(self):
        plan = super().plan_ahead()
        if plan is not None:
            _, pending = self.waiting.pop()
            taken = {
                seq_id: 1.0
                for seq_id, (name, _) in zip(plan.seq_ids, self.planned, strict=True)
                if name.startswith("slow")
            }
            result = replace(pending.result(), grammar_seconds=taken)
            self.waiting.append((plan, SimpleNamespace(result=lambda: result)))
        return plan

    def names(self):
        """Of the requests in the next step, which takes a second for each of its slow grammars, and 0.5 s at least."""
        self.step()
        self.now += max(0.5, sum(name.startswith("slow") for name, _ in self.planned))
        return [name for name, _ in self.planned]


@pytest.mark.parametrize("stages", [1, 2])
def test_others_have_three_times_as_long_as_slow_grammars(stages):
    engine = SlowGrammars(stages=stages)
    for name in ("slow", "a"):
        engine.add(name, 4, max_tokens=50)
    together = [name for _ in range(40) for name in engine.names()]
    assert together.count("slow") in range(4, 12)
    assert together.count("a") > 2 * together.count("slow")


def test_several_slow_grammars_have_no_more_together():
    engine = SlowGrammars()
    for name in ("slow 1", "slow 2", "a"):
        engine.add(name, 4, max_tokens=50)
    steps = [engine.names() for _ in range(26)]
    assert [len(step) for step in steps[:13]] == [3] + [1] * 8 + [3] + [1] * 3
    assert all("a" in step for step in steps)


def test_slow_grammars_go_on_at_once_where_there_are_no_others():
    engine = SlowGrammars()
    engine.add("slow", 4, max_tokens=10)
    engine.step(10)
    assert not engine.scheduler.has_work()
    engine.add("slow", 4, max_tokens=3)
    engine.add("a", 4, max_tokens=1)
    assert [engine.names() for _ in range(3)] == [["slow", "a"], ["slow"], ["slow"]]
