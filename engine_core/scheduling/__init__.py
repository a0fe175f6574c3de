"""Scheduling: decides which sequences compute how many tokens in a step, and which KV blocks they use.

Nothing here imports torch. The entry point is ``Scheduler``: ``schedule`` makes a plan, ``update`` takes its result.

scheduler          plans a step, and processes its results   (read first)
step_in_flight     a step until its results have arrived
request_queue      the waiting queue: priority, deficit round-robin across tenants, arrival; deadlines
fairness           running places, blocks and tokens of a step reserved for other tenants
pacing             when sequences with slow grammars go on
lifecycle          state transitions of sequences: start, preempt, end; outputs: the outputs of a step
drafting           how many drafts that grammars force a step takes; speculation: how many of drafters
ngram              drafts that are looked up in the tokens so far
stats              load and counters
"""

from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.stats import SchedulerStats

__all__ = ["Scheduler", "SchedulerStats"]
