// The same kernels, compiled for different instruction sets. Those that return something return 0, or 1 when there was no
// memory.
#pragma once

#include "interface.h"

struct Kernels {
    int (*attention)(const RinglineAttention&);
    int (*linear)(const RinglineLinear&);
    int (*normalize)(const RinglineNorm&);
    int (*rotate)(const RinglineRotation&);
    int (*activate)(const RinglineActivation&);
    int (*read_rows)(const RinglineRows&);
    int (*argmax)(const RinglineLinear&);  // puts out [M] int64: where each row of the result is greatest
    int (*select_rows)(const RinglineSelection&);
    int (*sigmoid_gate)(const RinglineSigmoidGate&);
    int (*grouped_linear)(const RinglineGroupedLinear&);
    int (*route)(const RinglineRouting&);
    int (*experts)(const RinglineExperts&);
};

extern const Kernels kernels_avx512_bf16, kernels_avx2, kernels_portable;

// Apart from the others, since what multiplies bytes fast is not what multiplies bfloat16 fast: a processor may have
// either alone.
struct Int8Kernels {
    int (*linear)(const RinglineInt8Weight&, const RinglineInt8Call&);
    void (*pack)(const RinglineInt8Packing&);
    int (*experts)(const RinglineExperts&);
};

extern const Int8Kernels int8_kernels_avx512_vnni, int8_kernels_avx2, int8_kernels_portable;
