"""Kernels for NVIDIA GPUs, written in Triton, which compiles them when they are first launched.

Every kernel is a function of pointers and sizes; the modules of ``attention`` and ``layers`` that launch them know the
tensors. On a machine without a GPU they can be run under Triton's interpreter, which is how the tests run them.
"""
