"""Engines behind one interface (``benchmarks.worker``): each file is run by the interpreter that has its engine."""
