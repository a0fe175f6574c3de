"""Scheduling: which sequences compute how many tokens in a step, and where their keys and values lie.

Nothing here imports torch. The entry point is ``Scheduler``: ``schedule`` makes a plan, ``update`` takes its result.

scheduler          plans a step, and takes its results in   (read first)
step_in_flight     a step until its results are in
request_queue      who is next: priority, deficit round-robin across tenants, arrival; deadlines
fairness           the places, blocks and tokens of a step that a tenant leaves to others
lifecycle          the moves between states: start, preempt, end; outputs: what a step reports of a sequence
drafting           where drafts come from; stats: load and counters
"""

from engine_core.scheduling.drafting import Drafter
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.stats import SchedulerStats

__all__ = ["Drafter", "Scheduler", "SchedulerStats"]
