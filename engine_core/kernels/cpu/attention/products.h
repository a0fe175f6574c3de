// Products of a few rows of factors by a tile of keys or values.
#pragma once

#include "linear/blocks.h"
#include "attention/layout.h"

namespace {

// A vector of keys reaches past a smaller unit: the next unit's products overwrite those of the excess lanes, and after
// the last unit nothing reads them.
constexpr int kScoreStride = kTileKeys + kUnit;

// scores[r][place] = Σ queries[r][d] · keys[d][place], from the `vector`-th vector of places on.
template <class F, int Rows, int Columns, bool kAhead>
void score_block(const typename F::Factor* queries, long stride, long dims, const KeyTile<F>& tile, int vector, float* scores) {
    Block<F, Rows, Columns> block;
    const typename F::Element *keys[Columns], *ahead[Columns];
    int places[Columns];
    const int unit_vectors = (tile.unit_tokens + kLanes - 1) / kLanes;
#pragma GCC unroll 8
    for (int c = 0; c < Columns; ++c) {
        const int unit = (vector + c) / unit_vectors, lane = (vector + c) % unit_vectors * kLanes;
        keys[c] = tile.keys[unit] + lane * F::kPack;
        ahead[c] = tile.keys_ahead[unit] + lane * F::kPack;
        places[c] = unit * tile.unit_tokens + lane;
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c) block.sums[r][c] = splat(0.0f);
    block.template add_products<kAhead>(queries, stride, keys, ahead, tile.unit_tokens * F::kPack, dims / F::kPack);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c) store(scores + r * kScoreStride + places[c], block.sums[r][c]);
}

// outputs[r][d] = outputs[r][d] · decays[r] + Σ weights[r][key] · values[key][d], from dimension `first` on.
template <class F, int Rows, int Columns, bool kAhead>
void output_block(const typename F::Factor* weights, const float* decays, long head_dim, const KeyTile<F>& tile,
                  int first, float* outputs) {
    using Element = typename F::Element;
    Block<F, Rows, Columns> block;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c)
            block.sums[r][c] = multiply(load(outputs + r * head_dim + first + c * kLanes), splat(decays[r]));
    for (int unit = tile.first_unit; unit < tile.units; ++unit) {
        const Element *values[Columns], *ahead[Columns];
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c) {
            values[c] = tile.values[unit] + (first + c * kLanes) * F::kPack;
            ahead[c] = tile.values_ahead[unit] + (first + c * kLanes) * F::kPack;
        }
        const typename F::Factor* const left = weights + unit * tile.unit_tokens;
        const int steps = tile.count[unit] / F::kPack;
        const long step = head_dim * F::kPack;
        block.template add_products<kAhead>(left, kTileKeys, values, ahead, step, steps);
        if constexpr (F::kPack == 2) {
            // The last pair's other token may be unwritten memory: a zero weight does not silence a NaN.
            if (tile.count[unit] % 2) {
                typename F::Column columns[Columns];
#pragma GCC unroll 8
                for (int c = 0; c < Columns; ++c) columns[c] = F::first_of_pairs(F::column(values[c] + steps * step));
                block.add_step(left + steps * 2, kTileKeys, columns);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < Columns; ++c) store(outputs + r * head_dim + first + c * kLanes, block.sums[r][c]);
}

// Divide rows × columns into blocks: visit(row, column, Rows, Columns); the last two are constants.
template <class Visit>
inline void for_blocks(int rows, int columns, Visit&& visit) {
    for (int column = 0; column < columns;) {
        const bool many = columns - column >= kBlockColumns;
        for (int row = 0; row < rows; row += kBlockRows)
            with_constant<kBlockRows>(rows - row, [&](auto count) {
                if (many)
                    visit(row, column, count, Constant<kBlockColumns>{});
                else
                    visit(row, column, count, Constant<1>{});
            });
        column += many ? kBlockColumns : 1;
    }
}

// Scores of query rows, `stride` apart, over the first `dims` dimensions of keys.
template <class F>
void compute_scores(const typename F::Factor* queries, int rows, long stride, long dims, const KeyTile<F>& tile, float* scores) {
    const int unit_vectors = (tile.unit_tokens + kLanes - 1) / kLanes, first = tile.first_unit * unit_vectors;
    for_blocks(rows, tile.units * unit_vectors - first, [&](int row, int vector, auto r, auto c) {
        auto* const left = queries + row * stride;
        float* const out = scores + row * kScoreStride;
        if (row == 0)
            score_block<F, r.value, c.value, true>(left, stride, dims, tile, first + vector, out);
        else
            score_block<F, r.value, c.value, false>(left, stride, dims, tile, first + vector, out);
    });
}

template <class F>
void add_values(const typename F::Factor* weights, const float* decays, int rows, long head_dim, const KeyTile<F>& tile,
                float* outputs) {
    for_blocks(rows, head_dim / kLanes, [&](int row, int vector, auto r, auto c) {
        auto* const left = weights + row * kTileKeys;
        float* const out = outputs + row * head_dim;
        if (row == 0)
            output_block<F, r.value, c.value, true>(left, decays + row, head_dim, tile, vector * kLanes, out);
        else
            output_block<F, r.value, c.value, false>(left, decays + row, head_dim, tile, vector * kLanes, out);
    });
}

}  // namespace
