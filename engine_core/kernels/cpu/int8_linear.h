// The C interface of linear layers with 8-bit weights. Mirrored by engine_core/kernels/library.py.
#pragma once

#include "interface.h"  // RinglineNumberType

extern "C" {

// M rows, K inputs, N outputs. Weights and what belongs to columns are padded with zeros to whole panels of 32 columns,
// and K to whole words of 4.
struct RinglineInt8Weight {
    const int8_t* weight;        // [N / 32, K / 4, 32, 4], −127 … 127
    const float* scales;         // [N]
    const int32_t* column_sums;  // [N], of the weights
    const float* bias;           // [N], or null
    int64_t in_features, out_features;
};

// Makes one out of [N, K] numbers; all that is written to must hold zeros.
struct RinglineInt8Packing {
    const void* input;
    int8_t* weight;
    float* scales;
    int32_t* column_sums;
    int64_t in_features, out_features;
    int32_t input_type;  // RinglineNumberType
    int32_t num_threads;
};

struct RinglineInt8Call {
    const void* input;     // [M, K]
    int64_t input_stride;  // elements from one row to the next
    const void* residual;  // [M, N] of the input's type, added to the output; or null
    void* output;          // [M, N], dense
    int64_t rows;
    int32_t input_type;   // RinglineNumberType
    int32_t output_type;  // the same, or float32
    int32_t num_threads;
};

}  // extern "C"

// Compiled for different instruction sets.
struct Int8Kernels {
    int (*linear)(const RinglineInt8Weight&, const RinglineInt8Call&);  // 0, or 1 when there was no memory
    void (*pack)(const RinglineInt8Packing&);
};

extern const Int8Kernels int8_kernels_avx512_vnni, int8_kernels_avx2, int8_kernels_portable;
