// The same kernels, compiled for different instruction sets. Each returns 0, or 1 when there was no memory.
#pragma once

#include "interface.h"

struct Kernels {
    int (*attention)(const RinglineAttention&);
    int (*linear)(const RinglineLinear&);
    int (*normalize)(const RinglineNorm&);
    int (*rotate)(const RinglineRotation&);
    int (*silu_and_multiply)(const RinglineGate&);
};

extern const Kernels kernels_avx512_bf16, kernels_avx2, kernels_portable;
