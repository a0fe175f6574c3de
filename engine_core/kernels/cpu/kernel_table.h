// The same kernels, compiled for different instruction sets.
#pragma once

#include "interface.h"

#define RINGLINE_FUNCTION(name, Arguments) int (*name)(const Arguments&);
struct Kernels {
    RINGLINE_KERNELS(RINGLINE_FUNCTION)
};
struct Int8Kernels {
    RINGLINE_INT8_KERNELS(RINGLINE_FUNCTION)
};
#undef RINGLINE_FUNCTION

extern const Kernels kernels_avx512_bf16, kernels_avx2, kernels_portable;
extern const Int8Kernels int8_kernels_avx512_vnni, int8_kernels_avx2, int8_kernels_portable;
