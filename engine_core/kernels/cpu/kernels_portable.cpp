// The kernels for any processor.
#include "simd_portable.h"
// The vectors come first: all that follows is written in them.
#include "kernels.h"
#include "kernel_table.h"

const Kernels kernels_portable = KERNELS;
