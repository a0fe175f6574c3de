// The kernels for processors with AVX-512 and its products of bfloat16.
#include "simd_avx512_bf16.h"
// The vectors come first: all that follows is written in them.
#include "kernels.h"
#include "kernel_table.h"

const Kernels kernels_avx512_bf16 = KERNELS;
