// The kernels for processors with AVX2, FMA and F16C.
#include "simd_avx2.h"
// The vectors come first: all that follows is written in them.
#include "kernels.h"
#include "kernel_table.h"

const Kernels kernels_avx2 = KERNELS;
