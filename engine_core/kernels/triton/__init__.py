"""Kernels for NVIDIA GPUs, written in Triton, which compiles them when they are first launched.

Every kernel is a function of pointers and sizes; the modules of ``attention`` and ``layers`` that launch them know the
tensors. On a machine without a GPU they can be run under Triton's interpreter, which is how the tests run them.

attention          chunks, single rows, and splits joined   (read first)
cache              the write to the KV cache
linear             a batch-invariant matrix product
quantized          the same, with a weight that stays quantized
experts            products of rows with the weights of their experts
norm, rope, activation     what is done to each row between the products
"""

AS_WRITTEN = {"enable_fp_fusion": False}
"""For every launch: multiply-adds are fused where a kernel says so, not where a compiler finds it convenient.

Otherwise, kernels that do the same to a row could differ in its last bit, and Triton's default, which an environment
variable sets, would be part of the numerics.
"""
