"""Native kernels: C++ with a plain C interface, built where the engine runs and loaded with ctypes.

README.md          the ideas, and an order in which to read cpu/   (read first)
cpu/               the kernels in C++; triton/: those for NVIDIA GPUs, which Triton compiles
arguments          the kernels and the structures of cpu/interface.h, read from it
build, provision   compile the library, where it is kept
library            loads it; memory: huge pages for what is streamed
capture            records calls of kernels, so that cpu/threads/replay.h can replay them
"""
