"""Scheduling: which sequences compute how many tokens in a step, and where their keys and values lie.

Nothing here imports torch. The way in is ``Scheduler``: ``schedule`` makes a plan, ``update`` takes its result.
"""

from engine_core.scheduling.drafting import Drafter
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.stats import SchedulerStats

__all__ = ["Drafter", "Scheduler", "SchedulerStats"]
