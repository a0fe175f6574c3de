"""The scheduler holds its promises whatever comes; ``make test-scheduler`` tries the same for longer."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from .machine import SchedulerMachine

SchedulerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_scheduler_machine = SchedulerMachine.TestCase
