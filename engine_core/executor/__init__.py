"""Executors: how a plan reaches the workers. One verb: run the plan."""
