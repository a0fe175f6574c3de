// Rotary position embedding of queries and keys, in place, after normalizing heads.
#pragma once

#include "rows/norm.h"

namespace {

constexpr long kRotatedPerNanosecond = 3;

// A head's weights and angles.
struct HeadRotation {
    const float* weight;  // null: not normalized
    const float *cos, *sin;
    int rotary_dim;  // 0: not rotated
    float scale;
};

inline void rotate_pairs(const float* x, float* y, const HeadRotation& r, bool interleaved) {
    const int half = r.rotary_dim / 2;
    if (interleaved)
        for (int i = 0; i < half; ++i) {
            y[2 * i] = x[2 * i] * r.cos[i] - x[2 * i + 1] * r.sin[i];
            y[2 * i + 1] = x[2 * i + 1] * r.cos[i] + x[2 * i] * r.sin[i];
        }
    else
        for (int i = 0; i < half; ++i) {
            y[i] = x[i] * r.cos[i] - x[i + half] * r.sin[i];
            y[i + half] = x[i + half] * r.cos[i] + x[i] * r.sin[i];
        }
}

template <class F>
inline void rotate_head(typename F::Element* head, const RinglineRotation& args, const HeadRotation& r) {
    float x[kMostHeadDim], y[kMostHeadDim];
    const int dim = args.head_dim;
    if (!r.weight && r.rotary_dim == 0 && r.scale == 1.0f) return;
    if (r.weight) {
        const Vec scale = splat(inverse_root_mean_square<F>(head, dim, args.mean_width, args.epsilon));
        for (int i = 0; i < dim; i += kLanes)
            store(x + i, multiply(multiply(F::widen(head + i), scale), load(r.weight + i)));
    } else {
        for (int i = 0; i < dim; i += kLanes) store(x + i, F::widen(head + i));
    }
    rotate_pairs(x, y, r, args.interleaved);
    for (int i = r.rotary_dim; i < dim; ++i) y[i] = x[i];
    for (int i = 0; i < dim; i += kLanes) F::narrow(head + i, multiply(load(y + i), splat(r.scale)));
}

template <class F>
int rotate_rows(const RinglineRotation& args) {
    const int rotated = args.num_heads + args.num_kv_heads, heads = rotated + (args.value_weight ? args.num_kv_heads : 0);
    const long width = static_cast<long>(heads) * args.head_dim;
    const int threads = threads_worth(args.rows * width / kRotatedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        auto* const first = static_cast<typename F::Element*>(args.heads) + row * args.stride;
        const long angles = row * (args.rotary_dim / 2);
        const float *const cos = args.cos + angles, *const sin = args.sin + angles;
        const HeadRotation query{args.query_weight, cos, sin, args.rotary_dim, args.query_scales ? args.query_scales[row] : 1.0f};
        const HeadRotation key{args.key_weight, cos, sin, args.rotary_dim, 1.0f};
        const HeadRotation value{args.value_weight, cos, sin, 0, 1.0f};
        for (int head = 0; head < heads; ++head)
            rotate_head<F>(first + head * args.head_stride, args, head < args.num_heads ? query : head < rotated ? key : value);
    });
    return 0;
}

inline int rotate(const RinglineRotation& args) {
    return with_number_type(args.number_type, [&](auto number) { return rotate_rows<decltype(number)>(args); });
}

}  // namespace
