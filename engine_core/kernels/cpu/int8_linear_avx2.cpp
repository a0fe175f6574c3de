// Layers with 8-bit weights for processors with AVX2, FMA and F16C.
#include "int8_avx2.h"
// The vectors come first: all that follows is written in them.
#include "int8_experts.h"
#include "int8_multiply.h"
#include "int8_pack.h"
#include "kernel_table.h"

const Int8Kernels int8_kernels_avx2 = {int8_linear, int8_pack, int8_experts};
