"""Engines with a common interface (``benchmarks.worker``): each file runs in the interpreter that has its engine."""
