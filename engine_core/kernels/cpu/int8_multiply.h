// y = x · Wᵀ + b with 8-bit weights, one scale per column, and activations that are rounded to 8 bits, one scale per row.
//
// Sums of products of integers are exact, and all else is done to each number alone: so a row's result has the same
// bits whatever the other rows, the threads and the instruction set.
#pragma once

#include "int8_rows.h"
#include "interface.h"
#include "team.h"

namespace {

constexpr int kPanel = 32;  // columns
constexpr int kVectors = kPanel / kLanes;
constexpr int kLineBytes = 64, kWordLines = kPanel * 4 / kLineBytes;  // cache lines of a word of each column
constexpr long kProductsPerNanosecond = 200, kRowsPerRead = 8;  // as in linear.h
constexpr long kRowsWorthReadingAhead = 8;
constexpr long kRoundedPerNanosecond = 6;
constexpr long kPieceBytes = 128 << 10;      // of weights that a thread takes at a time, at most
constexpr long kPieceBlocks = 8;             // of rows: they stay in the L2 cache
constexpr int kPiecesPerThread = 4;

// What is read ahead while a block of rows is computed: `lines` cache lines with every word.
struct WeightsAhead {
    const int8_t* from;
    int lines;
};

// sums [R, 32] of `words` words of each of R rows, with a panel of weights.
template <int R>
void multiply_block(const int32_t* activations, const int8_t* weight, long words, const int32_t* column_sums,
                    WeightsAhead ahead, int32_t* sums) {
    Sums block[R][kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
        const Sums start = multiply_integers(load_sums(column_sums + v * kLanes), splat_integer(-kOffset));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) block[r][v] = start;
    }
    for (long word = 0; word < words; ++word) {
        for (int line = 0; line < ahead.lines; ++line)
            __builtin_prefetch(ahead.from + (word * ahead.lines + line) * kLineBytes, 0, 2);
        Quads quads[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) quads[v] = load_quads(weight + (word * kPanel + v * kLanes) * 4);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v)
                block[r][v] = add_products(block[r][v], activations[word * R + r], quads[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) store_sums(sums + r * kPanel + v * kLanes, block[r][v]);
}

// The same for 1 ≤ rows ≤ R.
template <int R>
void multiply_rows(long rows, const int32_t* activations, const int8_t* weight, long words, const int32_t* column_sums,
                   WeightsAhead ahead, int32_t* sums) {
    if constexpr (R > 1)
        if (rows < R) return multiply_rows<R - 1>(rows, activations, weight, words, column_sums, ahead, sums);
    multiply_block<R>(activations, weight, words, column_sums, ahead, sums);
}

// One step of one layer.
template <class Input, class Output>
class Int8Linear {
public:
    Int8Linear(const RinglineInt8Weight& weight, const RinglineInt8Call& call)
        : weight_(weight),
          call_(call),
          words_((weight.in_features + 3) / 4),
          panels_((weight.out_features + kPanel - 1) / kPanel),
          rows_(call.rows, weight.in_features) {
        const long worth = call.rows < kRowsPerRead ? kRowsPerRead : call.rows;
        threads_ = threads_worth(worth * weight.in_features * weight.out_features / kProductsPerNanosecond, call.num_threads);
        const long row_pieces = (rows_.blocks() + kPieceBlocks - 1) / kPieceBlocks;
        const long shared = panels_ * row_pieces / (threads_ * kPiecesPerThread);
        const long fitting = kPieceBytes / (words_ * 4 * kPanel);
        piece_panels_ = shared < fitting ? shared : fitting;
        if (piece_panels_ < 1) piece_panels_ = 1;
        panel_pieces_ = (panels_ + piece_panels_ - 1) / piece_panels_;
        pieces_ = row_pieces * panel_pieces_;
    }

    int run() {
        if (rows_.failed()) return 1;
        const int rounding = threads_worth(call_.rows * weight_.in_features / kRoundedPerNanosecond, threads_);
        parallel_for(rounding, rows_.blocks(), 1, [&](long block) { quantize(block); });
        parallel_for(threads_, pieces_, 1, [&](long piece) { compute(piece); });
        return 0;
    }

private:
    void quantize(long block) {
        rows_.quantize<Input>(block, static_cast<const typename Input::Element*>(call_.input), call_.input_stride);
    }

    void compute(long piece) {
        const long first_block = piece / panel_pieces_ * kPieceBlocks, first_panel = piece % panel_pieces_ * piece_panels_;
        for (long panel = first_panel; panel < first_panel + piece_panels_ && panel < panels_; ++panel)
            for (long block = first_block; block < first_block + kPieceBlocks && block < rows_.blocks(); ++block)
                compute_block(block, panel, ahead_of(panel, block - first_block));
    }

    // The first one or two blocks of rows read the next panel, each as much of it as the other. With few rows, the
    // processor's own reading ahead keeps up, and more of it is in its way.
    WeightsAhead ahead_of(long panel, long block) const {
        const int sharing = rows_.blocks() > 1 ? 2 : 1;
        const long panel_bytes = words_ * 4 * kPanel;
        const int8_t* const next = weight_.weight + (panel + 1) * panel_bytes;
        if (call_.rows < kRowsWorthReadingAhead || block >= sharing || panel + 1 == panels_) return {nullptr, 0};
        return {next + block * panel_bytes / sharing, kWordLines / sharing};
    }

    void compute_block(long block, long panel, WeightsAhead ahead) {
        alignas(64) int32_t sums[kInt8Rows * kPanel];
        const long first = rows_.first(block), count = rows_.first(block + 1) - first;
        const int8_t* const weight = weight_.weight + panel * kPanel * words_ * 4;
        multiply_rows<kInt8Rows>(count, rows_.words(block), weight, words_, weight_.column_sums + panel * kPanel,
                                 ahead, sums);
        for (long r = 0; r < count; ++r) finish(sums + r * kPanel, panel * kPanel, first + r);
    }

    // Scale the sums of one row, from `column` on, add the bias, scale both and add the residual.
    void finish(const int32_t* sums, long column, long row) {
        const long left = weight_.out_features - column;
        auto* const to = static_cast<typename Output::Element*>(call_.output) + row * weight_.out_features + column;
        typename Output::Element whole[kPanel];
        auto* const at = left < kPanel ? whole : to;
        typename Input::Element residual[kPanel] = {};
        if (call_.residual) {
            const auto* const from = static_cast<const typename Input::Element*>(call_.residual);
            const long here = left < kPanel ? left : kPanel;
            std::memcpy(residual, from + row * weight_.out_features + column, here * sizeof *residual);
        }
        for (int lane = 0; lane < kPanel; lane += kLanes) {
            const Vec sum = to_floats(load_sums(sums + lane));
            Vec y = multiply(multiply(sum, load(weight_.scales + column + lane)), splat(rows_.scale(row)));
            if (weight_.bias) y = add(y, load(weight_.bias + column + lane));
            y = multiply(y, splat(call_.scale));
            if (call_.residual) y = add(y, Input::widen(residual + lane));
            Output::narrow(at + lane, y);
        }
        if (left < kPanel) std::memcpy(to, whole, left * sizeof *to);
    }

    const RinglineInt8Weight& weight_;
    const RinglineInt8Call& call_;
    const long words_, panels_;
    QuantizedRows rows_;
    int threads_;
    long piece_panels_, panel_pieces_, pieces_;
};

template <class Input>
int int8_linear_from(const RinglineInt8Weight& weight, const RinglineInt8Call& call) {
    if (call.output_type == kRinglineFloat32) return Int8Linear<Input, Float32>(weight, call).run();
    return Int8Linear<Input, Input>(weight, call).run();
}

inline int int8_linear(const RinglineInt8Weight& weight, const RinglineInt8Call& call) {
    switch (call.input_type) {
        case kRinglineFloat32: return int8_linear_from<Float32>(weight, call);
        case kRinglineFloat16: return int8_linear_from<Float16>(weight, call);
        default: return int8_linear_from<BFloat16>(weight, call);
    }
}

}  // namespace
