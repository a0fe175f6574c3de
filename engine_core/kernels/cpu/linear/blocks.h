// Blocks of accumulators, of sizes known at compile time.
//
// Every result is one chain of additions in ascending order, whatever the size of its block: how rows are divided into
// blocks changes no bit.
#pragma once

#include "simd/formats.h"

namespace {

inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 2); }

// A block of accumulators.
template <class F, int Rows, int Columns>
struct Block {
    using Element = typename F::Element;
    using Factor = typename F::Factor;

    Vec sums[Rows][Columns];

    inline __attribute__((always_inline)) void clear() {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) sums[r][c] = splat(0.0f);
    }

    // Rows of accumulators, `stride` apart in memory.
    inline __attribute__((always_inline)) void load_from(const float* at, long stride) {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) sums[r][c] = load(at + r * stride + c * kLanes);
    }
    inline __attribute__((always_inline)) void store_to(float* at, long stride) const {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) store(at + r * stride + c * kLanes, sums[r][c]);
    }

    // Add `steps` products of kPack factors each. Prefetches `ahead`, as much memory as `right`.
    template <bool kAhead>
    inline __attribute__((always_inline)) void add_products(
        const Factor* left, long left_stride, const Element* const (&right)[Columns], const Element* const (&ahead)[Columns],
        long right_step, int steps) {
        for (int step = 0; step < steps; ++step) {
            typename F::Column columns[Columns];
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) {
                columns[c] = F::column(right[c] + step * right_step);
                if (kAhead) prefetch(ahead[c] + step * right_step);
            }
            add_step(left + step * F::kPack, left_stride, columns);
        }
    }

    inline __attribute__((always_inline)) void add_step(
        const Factor* left, long left_stride, const typename F::Column (&columns)[Columns]) {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c)
                sums[r][c] = F::accumulate(sums[r][c], left + r * left_stride, columns[c]);
    }
};

template <int N>
struct Constant {
    static constexpr int value = N;
};

// f(Constant<0>{}), …, f(Constant<Count − 1>{}).
template <int Count, int First = 0, class F>
inline __attribute__((always_inline)) void for_constants(const F& f) {
    if constexpr (First < Count) {
        f(Constant<First>{});
        for_constants<Count, First + 1>(f);
    }
}

// Call `visit` with min(n, Most) as a constant; n ≥ 1.
template <int Most, class Visit>
inline void with_constant(int n, Visit&& visit) {
    if constexpr (Most > 1) {
        if (n < Most) return with_constant<Most - 1>(n, visit);
    }
    visit(Constant<Most>{});
}

}  // namespace
