"""Slow grammars take turns with all others, and what they answer stays the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine_core.scheduling import pacing

from .checked_executor import expected_output
from .harness import Harness, make_request


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
    assert [len(step) for step in steps[:17]] == [3] + [1] * 8 + [2] + [1] * 4 + [2] + [1] * 2
    assert all("a" in step for step in steps)


def test_slow_grammars_go_on_one_after_the_other():
    """A step has as many as take a twentieth of a second together, or one."""
    engine = SlowGrammars()
    for name in ("slow 1", "slow 2", "slow 3"):
        engine.add(name, 4, max_tokens=50)
    steps = [engine.names() for _ in range(7)]
    assert len(steps[0]) == 3
    assert all(len(step) == 1 for step in steps[1:])
    assert sorted(name for (name,) in steps[1:]) == ["slow 1"] * 2 + ["slow 2"] * 2 + ["slow 3"] * 2


def test_few_outputs_are_taken_in_again_in_one_step(monkeypatch):
    """By a grammar, after a resume: as many as take a twentieth of a second, or one."""
    monkeypatch.setattr(pacing, "REPLAYED_SECONDS", 0.01)
    engine = Harness()
    for number in range(3):
        name = f"resumed {number}"
        output, _ = expected_output(make_request(name, max_tokens=20), 0, engine.model)
        engine.add(name, max_tokens=20, grammar="g", resume={0: tuple(output[:4])})
    engine.add("fresh", max_tokens=20, grammar="g")
    steps = []
    for _ in range(4):
        engine.step()
        steps.append([count for *_, count in engine.batch])
    assert steps == [[8, 8, 7, 4], [1] * 4, [1] * 4, [1] * 4]


def test_who_waits_to_take_in_an_output_keeps_no_other_tenant_waiting(monkeypatch):
    """Where all but one of its tokens are in the prefix cache, nothing of it can be computed before that."""
    monkeypatch.setattr(pacing, "REPLAYED_SECONDS", 1.0)
    engine = Harness(prefix_caching=True)
    prompt = [7, 8, 9, 10]
    output, _ = expected_output(make_request("", prompt, max_tokens=20), 0, engine.model)
    engine.add("first", prompt, max_tokens=20)
    engine.step(22)
    assert not engine.scheduler.has_work()
    for number in range(2):
        engine.add(f"resumed {number}", prompt, tenant="a", max_tokens=20, grammar="g", resume={0: tuple(output[:5])})
    engine.add("fresh", 40, tenant="b", max_tokens=20)
    engine.step()
    assert sorted(engine.batch) == [("fresh", 0, 16), ("resumed 0", 0, 1)]
    engine.step()
    assert ("resumed 1", 0, 1) in engine.batch
