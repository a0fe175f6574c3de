"""Native kernels: C++ behind a plain C interface, built at install and loaded with ctypes."""
