"""The devices that workers compute on.

base               the interface; selector: which platform a worker computes on
cpu, host_memory   the CPU, and what the operating system says about memory
cuda, cuda_graphs  an NVIDIA GPU, its graphs, and the buffers they read
kv_cache_size      how many KV blocks and slots of states fit; cache_division: how they share the memory
"""
