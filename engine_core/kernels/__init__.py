"""Native kernels: C++ behind a plain C interface, built where the engine runs and loaded with ctypes."""
