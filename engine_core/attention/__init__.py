"""Attention over a paged KV cache: a backend owns the layout of the cache, and nothing else indexes into it.

base               the interface, and what a step says of its sequences   (read first)
native             on a CPU, by the native kernels
torch_reference    by plain torch: the reference in tests, and the fallback where no kernels can be built
selector           which of these two computes on a CPU, and why; gpu_selector: the same for NVIDIA GPUs
paged              what the backends of NVIDIA GPUs share: the write to the cache
triton             by our own Triton kernels; flash_attention, flashinfer: by libraries, on request
"""
