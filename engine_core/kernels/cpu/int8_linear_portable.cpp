// Layers with 8-bit weights for every processor.
#include "int8_portable.h"
// The vectors come first: all that follows is written in them.
#include "int8_experts.h"
#include "int8_multiply.h"
#include "int8_pack.h"
#include "kernel_table.h"

const Int8Kernels int8_kernels_portable = {int8_linear, int8_pack, int8_experts};
