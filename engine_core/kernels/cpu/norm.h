// Root mean square normalization. A row's sum runs over fixed lanes in a fixed order: its bits depend on nothing else.
#pragma once

#include "formats.h"
#include "interface.h"
#include "team.h"

namespace {

constexpr long kNormalizedPerNanosecond = 6;
constexpr long kPieceNumbers = 1 << 14;  // of whole rows that a thread takes at a time

inline long rows_of_piece(long width) { return width < kPieceNumbers ? kPieceNumbers / width : 1; }

inline float sum_of_lanes(Vec v) {
    float lanes[kLanes], total = 0.0f;
    store(lanes, v);
    for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane];
    return total;
}

// 1 / √(mean(x²) + ε); x has zeros behind the numbers that the mean is of.
template <class F>
inline float inverse_root_mean_square(const typename F::Element* x, long width, long mean_width, float epsilon) {
    Vec squares = splat(0.0f);
    for (long i = 0; i < width; i += kLanes) {
        const Vec v = F::widen(x + i);
        squares = multiply_add(v, v, squares);
    }
    return 1.0f / __builtin_sqrtf(sum_of_lanes(squares) / static_cast<float>(mean_width) + epsilon);
}

template <class F>
int normalize_rows(const RinglineNorm& args) {
    using Element = typename F::Element;
    const auto* const x = static_cast<const Element*>(args.x);
    const auto* const residual = static_cast<const Element*>(args.residual);
    auto* const output = static_cast<Element*>(args.output);
    const long width = args.width;
    const int threads = threads_worth(args.rows * width / kNormalizedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        const Element* const from = x + row * args.x_stride;
        Element* const to = output + row * args.output_stride;
        const Vec scale = splat(inverse_root_mean_square<F>(from, width, args.mean_width, args.epsilon));
        for (long i = 0; i < width; i += kLanes) {
            const Vec y = multiply(multiply(F::widen(from + i), scale), load(args.weight + i));
            F::narrow(to + i, residual ? add(y, F::widen(residual + row * width + i)) : y);
        }
    });
    return 0;
}

inline int normalize(const RinglineNorm& args) {
    switch (args.number_type) {
        case kRinglineFloat32: return normalize_rows<Float32>(args);
        case kRinglineFloat16: return normalize_rows<Float16>(args);
        default: return normalize_rows<BFloat16>(args);
    }
}

}  // namespace
