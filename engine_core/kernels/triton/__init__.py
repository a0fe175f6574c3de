"""Kernels for NVIDIA GPUs, written in Triton, which compiles them at their first launch.

Kernels are functions of pointers and sizes; the modules of ``attention`` and ``ops`` that launch them know the tensors.
Without a GPU they run under Triton's interpreter, as in the tests.

attention          chunks, single rows, and splits joined   (read first)
cache              the write to the KV cache
linear             a batch-invariant matrix product
quantized          the same, with a weight that stays quantized
experts            products of rows with their experts' weights
states             convolutions, recurrences and gated norms of layers that keep a state
lora               what adapters add to the rows of a product
norm, rope, activation     operations on rows between products
"""

AS_WRITTEN = {"enable_fp_fusion": False}
"""For every launch: multiply-adds are fused only where a kernel says so.

Otherwise, kernels that do the same to a row could differ in its last bit, and Triton's default, which an environment
variable sets, would be part of the numerics.
"""
