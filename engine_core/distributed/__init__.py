"""The ranks of one engine, and how they exchange tensors. Nothing here adds: one rank alone computes each sum.

ranks              which rank a worker is, and its part of layers, heads and outputs   (read first)
collectives        the interface: gather within a stage, send and receive between stages
rendezvous         where ranks meet as they start
shm                ranks of one host, through shared memory; shared_region: how they map it
process_group      gloo and NCCL, through torch.distributed
"""
