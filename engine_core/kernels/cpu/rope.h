// Rotary position embedding of queries and keys where they lie, with their normalization before it.
#pragma once

#include "norm.h"

namespace {

constexpr int kMostHeadDim = 1024;
constexpr long kRotatedPerNanosecond = 3;

// Rotate each pair (i, i + rotary_dim / 2) of a head by its angle; behind them there are zeros.
template <class F>
inline void rotate_head(typename F::Element* head, int dim, int rotary_dim, const float* cos, const float* sin,
                        const float* weight, float epsilon) {
    float x[kMostHeadDim], y[kMostHeadDim];
    if (weight) {
        const Vec scale = splat(inverse_root_mean_square<F>(head, dim, rotary_dim, epsilon));
        for (int i = 0; i < dim; i += kLanes)
            store(x + i, multiply(multiply(F::widen(head + i), scale), load(weight + i)));
    } else {
        for (int i = 0; i < dim; i += kLanes) store(x + i, F::widen(head + i));
    }
    const int half = rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
        y[i] = x[i] * cos[i] - x[i + half] * sin[i];
        y[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
    }
    for (int i = rotary_dim; i < dim; ++i) y[i] = 0.0f;
    for (int i = 0; i < dim; i += kLanes) F::narrow(head + i, load(y + i));
}

template <class F>
int rotate_rows(const RinglineRotation& args) {
    const int dim = args.head_dim, heads = args.num_heads + args.num_kv_heads;
    const int threads = threads_worth(args.rows * heads * dim / kRotatedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(heads * dim), [&](long row) {
        auto* const first = static_cast<typename F::Element*>(args.heads) + row * args.stride;
        const long angles = row * (args.rotary_dim / 2);
        const float *const cos = args.cos + angles, *const sin = args.sin + angles;
        for (int head = 0; head < heads; ++head)
            rotate_head<F>(first + head * dim, dim, args.rotary_dim, cos, sin,
                           head < args.num_heads ? args.query_weight : args.key_weight, args.epsilon);
    });
    return 0;
}

inline int rotate(const RinglineRotation& args) {
    switch (args.number_type) {
        case kRinglineFloat32: return rotate_rows<Float32>(args);
        case kRinglineFloat16: return rotate_rows<Float16>(args);
        default: return rotate_rows<BFloat16>(args);
    }
}

}  // namespace
