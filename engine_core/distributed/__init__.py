"""The ranks of one engine, and how they exchange numbers. Nothing here adds: sums are computed by one rank alone.

ranks              which rank a worker is, and its part of layers, heads and outputs   (read first)
collectives        the interface: gather within a stage, send and receive between stages
rendezvous         where ranks meet as they start
shm                ranks of one host, through memory that they share; shared_region: how they come by it
process_group      gloo and NCCL, through torch.distributed
"""
