// y = x · Wᵀ + b with 8-bit weights, a scale per column, and activations rounded to 8 bits, a scale per row.
//
// Sums of integer products are exact, and all else is done to each number alone: so a row's result has the same
// bits whatever the other rows, the threads and the instruction set.
#pragma once

#include "quantized/int8_rows.h"
#include "linear/linear.h"

namespace {

constexpr int kInt8Panel = 32;  // columns
constexpr int kVectors = kInt8Panel / kLanes;
constexpr int kWordLines = kInt8Panel * 4 / kCacheLine;  // cache lines of a word per column
constexpr long kInt8ProductsPerNanosecond = 200;
constexpr long kRowsWorthReadingAhead = 8;
constexpr long kRoundedPerNanosecond = 6;
constexpr long kPieceBytes = 128 << 10;      // of weights per piece, at most
constexpr long kPieceBlocks = 8;             // of rows: they stay in the L2 cache
constexpr int kPiecesPerThread = 4;

// Memory to read ahead while a block of rows is computed: `lines` cache lines per word.
struct WeightsAhead {
    const int8_t* from;
    int lines;
};

// sums [R, 32]: products of R rows of `words` words with a panel of weights.
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
            __builtin_prefetch(ahead.from + (word * ahead.lines + line) * kCacheLine, 0, 2);
        Quads quads[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) quads[v] = load_quads(weight + (word * kInt8Panel + v * kLanes) * 4);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v)
                block[r][v] = add_products(block[r][v], activations[word * R + r], quads[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) store_sums(sums + r * kInt8Panel + v * kLanes, block[r][v]);
}

// The same for 1 ≤ rows ≤ R.
template <int R>
void multiply_rows(long rows, const int32_t* activations, const int8_t* weight, long words, const int32_t* column_sums,
                   WeightsAhead ahead, int32_t* sums) {
    if constexpr (R > 1)
        if (rows < R) return multiply_rows<R - 1>(rows, activations, weight, words, column_sums, ahead, sums);
    multiply_block<R>(activations, weight, words, column_sums, ahead, sums);
}

// The panels of a weight, or of one of several consecutive weights.
class Panels {
public:
    explicit Panels(const RinglineInt8Weight& weight, long which = 0)
        : words_((weight.in_features + 3) / 4),
          count_((weight.out_features + kInt8Panel - 1) / kInt8Panel),
          weight_(weight.weight + which * count_ * bytes()),
          scales_(weight.scales + which * count_ * kInt8Panel),
          column_sums_(weight.column_sums + which * count_ * kInt8Panel),
          bias_(weight.bias ? weight.bias + which * count_ * kInt8Panel : nullptr) {}

    long words() const { return words_; }
    long count() const { return count_; }
    long bytes() const { return words_ * 4 * kInt8Panel; }  // of a panel
    const int8_t* weight(long panel) const { return weight_ + panel * bytes(); }
    const int32_t* column_sums(long panel) const { return column_sums_ + panel * kInt8Panel; }

    // The results of a row's sums, for columns from `column` on.
    Vec result(const int32_t* sums, long column, float row_scale) const {
        const Vec y = multiply(multiply(to_floats(load_sums(sums)), load(scales_ + column)), splat(row_scale));
        return bias_ ? add(y, load(bias_ + column)) : y;
    }

private:
    const long words_, count_;
    const int8_t* const weight_;
    const float* const scales_;
    const int32_t* const column_sums_;
    const float* const bias_;
};

// Cuts products of rows with panels into pieces for threads: neighbouring panels by neighbouring blocks of rows.
class Pieces {
public:
    // `panels`: per piece.
    Pieces(const Panels& weight, long blocks, long panels)
        : panels_(panels), panel_pieces_((weight.count() + panels - 1) / panels), row_pieces_(of_rows(blocks)) {}

    static long of_rows(long blocks) { return (blocks + kPieceBlocks - 1) / kPieceBlocks; }

    // Panels per piece when threads share `units` pieces of one panel.
    static long panels_of(long units, const Panels& weight, int threads) {
        const long shared = units / (threads * kPiecesPerThread), fitting = kPieceBytes / weight.bytes();
        const long panels = shared < fitting ? shared : fitting;
        return panels < 1 ? 1 : panels;
    }

    long count() const { return row_pieces_ * panel_pieces_; }
    long first_block(long piece) const { return piece / panel_pieces_ * kPieceBlocks; }
    long first_panel(long piece) const { return piece % panel_pieces_ * panels_; }

    // Calls finish(row, panel, sums) for each row and panel of the piece.
    template <class Finish>
    void compute(long piece, const Panels& weight, const QuantizedRows& rows, const Finish& finish) const {
        alignas(64) int32_t sums[kInt8Rows * kInt8Panel];
        for (long panel = first_panel(piece); panel < first_panel(piece) + panels_ && panel < weight.count(); ++panel)
            for (long b = first_block(piece); b < first_block(piece) + kPieceBlocks && b < rows.blocks(); ++b) {
                const long first = rows.first(b), count = rows.first(b + 1) - first;
                multiply_rows<kInt8Rows>(count, rows.words(b), weight.weight(panel), weight.words(), weight.column_sums(panel),
                                         ahead_of(weight, panel, rows, b - first_block(piece)), sums);
                for (long r = 0; r < count; ++r) finish(first + r, panel, sums + r * kInt8Panel);
            }
    }

private:
    // The first one or two blocks of rows read the next panel, in equal shares. With few rows, the processor's own
    // prefetching keeps up, and more would hinder it.
    static WeightsAhead ahead_of(const Panels& weight, long panel, const QuantizedRows& rows, long block) {
        const int sharing = rows.blocks() > 1 ? 2 : 1;
        if (rows.rows() < kRowsWorthReadingAhead || block >= sharing || panel + 1 == weight.count()) return {nullptr, 0};
        return {weight.weight(panel + 1) + block * weight.bytes() / sharing, kWordLines / sharing};
    }

    const long panels_, panel_pieces_, row_pieces_;
};

// A layer's call.
template <class Input, class Output>
class Int8Linear {
public:
    explicit Int8Linear(const RinglineInt8Linear& call)
        : weight_(*call.weight),
          call_(call),
          panels_(weight_),
          scales_at_(padded_bytes<int32_t>(call.rows * panels_.words())),
          buffer_(scales_at_ + padded_bytes<float>(call.rows)),
          rows_(call.rows, weight_.in_features, reinterpret_cast<int32_t*>(buffer_.at(0)),
                reinterpret_cast<float*>(buffer_.at(scales_at_))) {}

    int run() {
        if (buffer_.failed()) return 1;
        const long worth = call_.rows < kRowsPerRead ? kRowsPerRead : call_.rows;
        const long products = worth * weight_.in_features * weight_.out_features;
        const int threads = threads_worth(products / kInt8ProductsPerNanosecond, call_.num_threads);
        const int rounding = threads_worth(call_.rows * weight_.in_features / kRoundedPerNanosecond, threads);
        parallel_for(rounding, rows_.blocks(), 1, [&](long block) { quantize(block); });
        const long units = panels_.count() * Pieces::of_rows(rows_.blocks());
        const Pieces pieces(panels_, rows_.blocks(), Pieces::panels_of(units, panels_, threads));
        parallel_for(threads, pieces.count(), 1, [&](long piece) {
            pieces.compute(piece, panels_, rows_, [&](long row, long panel, const int32_t* sums) {
                finish(row, panel * kInt8Panel, sums);
            });
        });
        return 0;
    }

private:
    void quantize(long block) const {
        const auto* const input = static_cast<const typename Input::Element*>(call_.input);
        rows_.template quantize<Input>(block, [&](long row) { return input + row * call_.input_stride; });
    }

    // Scale a row's sums from `column` on, add the bias, scale both and add the residual.
    void finish(long row, long column, const int32_t* sums) const {
        const long left = weight_.out_features - column;
        auto* const to = static_cast<typename Output::Element*>(call_.output) + row * call_.output_stride + column;
        typename Output::Element whole[kInt8Panel];
        auto* const at = left < kInt8Panel ? whole : to;
        typename Input::Element residual[kInt8Panel] = {};
        if (call_.residual) {
            const auto* const from = static_cast<const typename Input::Element*>(call_.residual);
            const long here = left < kInt8Panel ? left : kInt8Panel;
            std::memcpy(residual, from + row * call_.residual_stride + column, here * sizeof *residual);
        }
        for (int lane = 0; lane < kInt8Panel; lane += kLanes) {
            Vec y = panels_.result(sums + lane, column + lane, rows_.scale(row));
            y = multiply(y, splat(call_.scale));
            if (call_.residual) y = add(y, Input::widen(residual + lane));
            Output::narrow(at + lane, y);
        }
        if (left < kInt8Panel) std::memcpy(to, whole, left * sizeof *to);
    }

    const RinglineInt8Weight& weight_;
    const RinglineInt8Linear& call_;
    const Panels panels_;
    const long scales_at_;  // bytes of the buffer
    const Buffer buffer_;
    const QuantizedRows rows_;
};

inline int int8_linear(const RinglineInt8Linear& call) {
    return with_number_type(call.input_type, [&](auto input) {
        using Input = decltype(input);
        if (call.output_type == kRinglineFloat32) return Int8Linear<Input, Float32>(call).run();
        return Int8Linear<Input, Input>(call).run();
    });
}

}  // namespace
