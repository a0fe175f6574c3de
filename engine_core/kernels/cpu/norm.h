// Normalization of rows, by their root mean square or by their mean and deviation. A row's sum runs over fixed lanes in a fixed order: its bits depend on nothing else.
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

// Σ (x − mean)² over the first `count` of a row's numbers.
template <class F>
inline float sum_of_squares_around(const typename F::Element* x, long count, float mean) {
    Vec squares = splat(0.0f);
    for (long i = 0; i < count; i += kLanes) {
        const long left = count - i < kLanes ? count - i : kLanes;
        const Vec v = first_lanes(subtract(F::widen(x + i), splat(mean)), static_cast<int>(left), splat(0.0f));
        squares = multiply_add(v, v, squares);
    }
    return sum_of_lanes(squares);
}

template <class F>
inline float sum_of(const typename F::Element* x, long width) {
    Vec total = splat(0.0f);
    for (long i = 0; i < width; i += kLanes) total = add(total, F::widen(x + i));
    return sum_of_lanes(total);
}

// Layer normalization (Ba et al., 2016, https://arxiv.org/abs/1607.06450).
template <class F>
int center_rows(const RinglineNorm& args) {
    using Element = typename F::Element;
    const auto* const x = static_cast<const Element*>(args.x);
    const auto* const residual = static_cast<const Element*>(args.residual);
    auto* const output = static_cast<Element*>(args.output);
    const long width = args.width;
    const float count = static_cast<float>(args.mean_width);
    const int threads = threads_worth(args.rows * width / kNormalizedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        const Element* const from = x + row * args.x_stride;
        Element* const to = output + row * args.output_stride;
        const float mean = sum_of<F>(from, width) / count;
        const float variance = sum_of_squares_around<F>(from, args.mean_width, mean) / count;
        const Vec scale = splat(1.0f / __builtin_sqrtf(variance + args.epsilon));
        for (long i = 0; i < width; i += kLanes) {
            const Vec centered = multiply(subtract(F::widen(from + i), splat(mean)), scale);
            const Vec y = multiply_add(centered, load(args.weight + i), load(args.bias + i));
            F::narrow(to + i, residual ? add(y, F::widen(residual + row * width + i)) : y);
        }
    });
    return 0;
}

template <class F>
int normalize_as(const RinglineNorm& args) {
    return args.bias ? center_rows<F>(args) : normalize_rows<F>(args);
}

inline int normalize(const RinglineNorm& args) {
    switch (args.number_type) {
        case kRinglineFloat32: return normalize_as<Float32>(args);
        case kRinglineFloat16: return normalize_as<Float16>(args);
        default: return normalize_as<BFloat16>(args);
    }
}

}  // namespace
