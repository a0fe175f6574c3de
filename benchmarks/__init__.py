"""How fast the engine and the ring are, beside the machine's limits and beside what else could do the same work."""
