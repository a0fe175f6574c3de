"""The paged KV cache as the scheduler sees it; no torch.

manager            block tables of sequences, prefix hits, allocation, release, windows   (read first)
block_pool         blocks, reference counts, the LRU of free ones, the hash chain of the prefix cache
"""
