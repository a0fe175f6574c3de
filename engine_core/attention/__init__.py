"""Attention over a paged KV cache: a backend owns the layout of the cache, and nothing else indexes into it.

base               the backend interface, and a step's attention metadata   (read first)
native             native kernels for CPUs
torch_reference    plain torch: the reference in tests, and the fallback where no kernels can be built
selector           chooses between these two on a CPU; gpu_selector: the same for NVIDIA GPUs
paged              shared by the backends for NVIDIA GPUs: the write to the cache
triton             our own Triton kernels; flash_attention, flashinfer: libraries, on request
"""
