"""Benchmarks of the engine and the ring, compared with the machine's limits and with other engines and servers."""
