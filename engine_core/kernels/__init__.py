"""Native kernels: C++ with a plain C interface, built where the engine runs and loaded with ctypes.

README.md          the ideas, and an order in which to read cpu/   (read first)
cpu/               the kernels in C++; triton/: kernels for NVIDIA GPUs, compiled by Triton
arguments          kernels and structures, read from cpu/interface.h
build, provision   compile the library; where it is kept
library            loads it; openmp: beside torch's runtime; memory: huge pages for streamed data
capture            records kernel calls, so that cpu/threads/replay.h can replay them
"""
