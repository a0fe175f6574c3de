"""The scheduler holds its promises whatever comes; ``make test-scheduler`` tries the same for longer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import SchedulerMachine


@pytest.mark.parametrize("examples", [50, pytest.param(150, marks=pytest.mark.wide)])
def test_the_scheduler_holds_its_promises(examples: int) -> None:
    limits = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(SchedulerMachine, settings=limits)
