"""The states that layers keep per sequence, as workers see them: memory by slot, and a step's reads and writes.

base        the memory, and the metadata of a step
"""
