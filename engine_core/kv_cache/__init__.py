"""The paged KV cache as the scheduler sees it; no torch.

manager            block tables of sequences, prefix hits, allocation, release, windows   (read first)
state_slots        slots for the states of sequences, and where these leave snapshots
prefix_hashes      the hash chain of the prefix cache
block_pool         blocks, reference counts, and the LRU of free ones
"""
