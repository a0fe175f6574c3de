// The kernels of 8-bit weights for one instruction set. build.py compiles this file for each, like kernels.cpp.
#include RINGLINE_VECTORS
// The vectors come first: all following code uses them.
#include "experts/int8_experts.h"
#include "quantized/int8_multiply.h"
#include "quantized/int8_pack.h"
#include "kernel_table.h"
#include "experts/quantized_int8_experts.h"
#include "quantized/int8_activations_linear.h"

#define RINGLINE_NAME(name, Arguments) name,
const Int8Kernels RINGLINE_TABLE = {RINGLINE_INT8_KERNELS(RINGLINE_NAME)};
