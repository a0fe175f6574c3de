// Online softmax (Milakov and Gimelshein, 2018, https://arxiv.org/abs/1805.02867): weights of a tile of scores, relative
// to the highest score so far.
#pragma once

#include "simd/exponent.h"
#include "threads/memory.h"
#include "attention/products.h"

namespace {

// Rows' partial outputs, after some of their keys.
struct RowState {
    RowState() = default;
    RowState(char* memory, long rows, long head_dim) {
        Parts parts(memory);
        output = parts.take<float>(rows * head_dim);
        sum = parts.take<float>(rows * kLanes);
        maximum = parts.take<float>(rows);
    }
    static long bytes(long rows, long head_dim) {
        return padded_bytes<float>(rows * head_dim) + padded_bytes<float>(rows * kLanes) + padded_bytes<float>(rows);
    }

    void clear(int rows, long head_dim) const {
        for (int r = 0; r < rows; ++r) maximum[r] = -__builtin_inff();
        for (long i = 0; i < rows * kLanes; ++i) sum[i] = 0.0f;
        for (long i = 0; i < rows * head_dim; ++i) output[i] = 0.0f;
    }

    RowState from(int row, long head_dim) const {
        RowState rest;
        rest.output = output + row * head_dim;
        rest.sum = sum + row * kLanes;
        rest.maximum = maximum + row;
        return rest;
    }

    float* output;   // [rows, D]: sums of weighted values
    float* sum;      // [rows, kLanes]: sums of weights, by lane
    float* maximum;  // [rows]: the highest score, to which weights are relative
};

// Places, rounded up to whole vectors.
inline int padded_places(int places) { return (places + kLanes - 1) / kLanes * kLanes; }

// A tile's first visible place, rounded down to whole vectors.
template <class F>
inline int first_place(const KeyTile<F>& tile) { return tile.first_unit * tile.unit_tokens / kLanes * kLanes; }

// Hide places that a row does not see: before `first`, from `visible` on, and gaps.
template <class F>
inline void mask_scores(float* scores, const KeyTile<F>& tile, int first, int visible) {
    const float hidden = -__builtin_inff();
    for (int place = first_place(tile); place < first; place += kLanes)
        store(scores + place, first_lanes(splat(hidden), first - place, load(scores + place)));
    for (int place = visible / kLanes * kLanes; place < padded_places(tile.places()); place += kLanes)
        store(scores + place, first_lanes(load(scores + place), visible - place, splat(hidden)));
    if (!tile.gaps) return;
    for (int unit = 0; unit < tile.units; ++unit)
        for (int i = tile.count[unit]; i < tile.unit_tokens; ++i) scores[unit * tile.unit_tokens + i] = hidden;
}

// Turn a row's scores of places `first` … `places` − 1 of a tile, at least one of them visible, into weights; returns
// the factor by which earlier sums decay. In an 8-bit cache, weights include the values' `scales`.
template <class F>
inline float weigh(const float* scores, int first, int places, float scale, const RowState& row, const float* scales,
                   typename F::Factor* weights) {
    const int end = padded_places(places);
    Vec highest = load(scores + first);
    for (int place = first + kLanes; place < end; place += kLanes) highest = maximum_of(load(scores + place), highest);
    const float before = *row.maximum, here = largest_lane(highest);
    *row.maximum = here > before ? here : before;
    const float shift = *row.maximum * scale;
    const float decay = exp2_of(before * scale - shift);
    Vec total = multiply(load(row.sum), splat(decay));
    for (int place = first; place < end; place += kLanes) {
        const Vec weight = exp2_of(multiply_add(load(scores + place), splat(scale), splat(-shift)));
        total = add(total, weight);
        if constexpr (F::kCoded) {
            // Hidden places may have no scale.
            const Vec scaled = multiply(weight, load(scales + place));
            F::store_factors(weights + place, zero_where_less(scaled, load(scores + place), splat(-__FLT_MAX__)));
        } else {
            F::store_factors(weights + place, weight);
        }
    }
    store(row.sum, total);
    return decay;
}

// Merge a row's partial output over later keys into that over earlier ones.
inline void merge(const RowState& earlier, const RowState& later, long head_dim, float scale) {
    const float before = *earlier.maximum, here = *later.maximum;
    if (before == -__builtin_inff()) {  // it sees no earlier keys
        *earlier.maximum = here;
        std::memcpy(earlier.sum, later.sum, kLanes * sizeof(float));
        std::memcpy(earlier.output, later.output, head_dim * sizeof(float));
        return;
    }
    *earlier.maximum = here > before ? here : before;
    const float shift = *earlier.maximum * scale;
    const Vec keep = splat(exp2_of(before * scale - shift)), take = splat(exp2_of(here * scale - shift));
    store(earlier.sum, multiply_add(load(later.sum), take, multiply(load(earlier.sum), keep)));
    for (long d = 0; d < head_dim; d += kLanes)
        store(earlier.output + d, multiply_add(load(later.output + d), take, multiply(load(earlier.output + d), keep)));
}

// Cap a row's scores of a tile.
template <class F>
inline void cap_scores(float* scores, const KeyTile<F>& tile, float scale, float cap) {
    for (int place = first_place(tile); place < padded_places(tile.places()); place += kLanes)
        store(scores + place, multiply(tanh_of(multiply(load(scores + place), splat(scale / cap))), splat(cap)));
}

// The factor that normalizes a row's sums once all its keys are added; a sink takes its share.
inline float share_of_weights(const RowState& row, float scale, const float* sink) {
    float total = 0.0f;
    for (int lane = 0; lane < kLanes; ++lane) total += row.sum[lane];
    if (!sink) return 1.0f / total;
    const float keys = *row.maximum * scale, other = *sink * 1.44269504088896340736f;
    const float highest = keys > other ? keys : other;
    const float kept = exp2_of(keys - highest);
    return kept / (total * kept + exp2_of(other - highest));
}

// A row's attention output, once all its keys are added.
template <class F>
inline void finish(const RowState& row, long head_dim, float share, typename F::Element* output) {
    const Vec inverse = splat(share);
    for (long d = 0; d < head_dim; d += kLanes) F::narrow(output + d, multiply(load(row.output + d), inverse));
}

}  // namespace
