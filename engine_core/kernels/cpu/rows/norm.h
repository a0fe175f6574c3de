// Normalizes rows or their groups, by root mean square or by mean and deviation. Sums run over fixed lanes in a fixed
// order, so their bits depend on nothing else.
#pragma once

#include "simd/formats.h"
#include "interface.h"
#include "threads/team.h"

namespace {

constexpr long kNormalizedPerNanosecond = 6;
constexpr long kPieceNumbers = 1 << 14;  // that a thread takes at a time, in whole rows

inline long rows_of_piece(long width) { return width < kPieceNumbers ? kPieceNumbers / width : 1; }

inline float sum_of_lanes(Vec v) {
    float lanes[kLanes], total = 0.0f;
    store(lanes, v);
    for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane];
    return total;
}

// 1 / √(mean(x²) + ε); zeros follow x's first mean_width numbers.
template <class F>
inline float inverse_root_mean_square(const typename F::Element* x, long width, long mean_width, float epsilon) {
    Vec squares = splat(0.0f);
    for (long i = 0; i < width; i += kLanes) {
        const Vec v = F::widen(x + i);
        squares = multiply_add(v, v, squares);
    }
    return 1.0f / __builtin_sqrtf(sum_of_lanes(squares) / static_cast<float>(mean_width) + epsilon);
}

// Outputs (y + residual) · scale with y = normalized(kLanes numbers of a group, their offset, statistics(group)).
template <class F, class Statistics, class Normalized>
int normalize_groups(const RinglineNorm& args, const Statistics& statistics, const Normalized& normalized) {
    using Element = typename F::Element;
    const long width = args.width, groups = args.groups;
    const int threads = threads_worth(args.rows * groups * width / kNormalizedPerNanosecond, args.num_threads);
    const Vec scale = splat(args.scale);
    parallel_for(threads, args.rows * groups, rows_of_piece(width), [&](long index) {
        const long row = index / groups, place = index % groups * width;
        const Element* const from = static_cast<const Element*>(args.x) + row * args.x_stride + place;
        const Element* const residual = args.residual ? static_cast<const Element*>(args.residual) + index * width : nullptr;
        Element* const to = static_cast<Element*>(args.output) + row * args.output_stride + place;
        const Element* const over = args.over ? static_cast<const Element*>(args.over) + row * args.over_stride : from;
        const auto of_group = statistics(over);
        for (long i = 0; i < width; i += kLanes) {
            const Vec y = normalized(F::widen(from + i), i, of_group);
            F::narrow(to + i, multiply(residual ? add(y, F::widen(residual + i)) : y, scale));
        }
    });
    return 0;
}

template <class F>
int normalize_rows(const RinglineNorm& args) {
    const long width = args.over ? args.over_width : args.width;
    const auto statistics = [&](const typename F::Element* x) {
        return splat(inverse_root_mean_square<F>(x, width, args.mean_width, args.epsilon));
    };
    return normalize_groups<F>(args, statistics, [&](Vec x, long i, Vec inverse) {
        return multiply(multiply(x, inverse), load(args.weight + i));
    });
}

// Σ (x − mean)² over a row's first `count` numbers.
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

struct MeanAndInverse {
    Vec mean, inverse;
};

// Layer normalization (Ba et al., 2016, https://arxiv.org/abs/1607.06450).
template <class F>
int center_rows(const RinglineNorm& args) {
    const float count = static_cast<float>(args.mean_width);
    const auto statistics = [&](const typename F::Element* x) {
        const float mean = sum_of<F>(x, args.width) / count;
        const float variance = sum_of_squares_around<F>(x, args.mean_width, mean) / count;
        return MeanAndInverse{splat(mean), splat(1.0f / __builtin_sqrtf(variance + args.epsilon))};
    };
    return normalize_groups<F>(args, statistics, [&](Vec x, long i, const MeanAndInverse& of_row) {
        const Vec centered = multiply(subtract(x, of_row.mean), of_row.inverse);
        return multiply_add(centered, load(args.weight + i), load(args.bias + i));
    });
}

template <class F>
int normalize_as(const RinglineNorm& args) {
    return args.bias ? center_rows<F>(args) : normalize_rows<F>(args);
}

inline int normalize(const RinglineNorm& args) {
    return with_number_type(args.number_type, [&](auto number) { return normalize_as<decltype(number)>(args); });
}

}  // namespace
