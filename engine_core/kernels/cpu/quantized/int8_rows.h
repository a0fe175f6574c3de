// Rounds rows to bytes, with a scale per row, in the layout of products.
#pragma once

#include "simd/formats.h"

namespace {

constexpr int32_t kInfinity = 0x7f800000;  // its bits
constexpr float kSmallest = 1e-30f;        // rows of smaller numbers become zeros: 127 / x must be finite

// XOR with a word of 4 bytes adds kOffset to each.
constexpr int32_t kFlip = static_cast<int32_t>(kOffset * 0x01010101u);

// Numbers become bytes by multiplying by the factor and rounding. The scale undoes it: NaN if they include an infinity
// or NaN.
struct Rounding {
    float factor, scale;
};

// `bits`: of the numbers' greatest magnitude.
inline Rounding rounding_for(int32_t bits) {
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    if (bits >= kInfinity) return {0.0f, __builtin_nanf("")};
    return magnitude >= kSmallest ? Rounding{127.0f / magnitude, magnitude / 127.0f} : Rounding{0.0f, 0.0f};
}

// Round `count` numbers to bytes up to ±127, and write words of 4, XORed with `flip`, at every `step`-th place of `to`;
// zeros fill the last word. Returns the scale: NaN if there is an infinity or NaN.
template <class F>
float round_row(const typename F::Element* from, long count, int32_t* to, long step, int32_t flip) {
    const long whole = count / kLanes * kLanes;
    typename F::Element tail[kLanes] = {};
    std::memcpy(tail, from + whole, (count - whole) * sizeof *tail);
    Sums most = magnitudes(F::widen(tail));
    for (long i = 0; i < whole; i += kLanes) most = larger(most, magnitudes(F::widen(from + i)));
    const Rounding rounding = rounding_for(largest(most));
    const Vec factor = splat(rounding.factor);
    const auto round = [&](const typename F::Element* numbers, long first) {
        // Infinity times zero is NaN, which rounds to any byte; the scale is NaN anyway.
        int32_t words[kLanes / 4];
        round_to_bytes(words, multiply(F::widen(numbers), factor));
        for (long w = 0; w < kLanes / 4 && first + w < (count + 3) / 4; ++w) to[(first + w) * step] = words[w] ^ flip;
    };
    for (long i = 0; i < whole; i += kLanes) round(from + i, i / 4);
    if (whole < count) round(tail, whole / 4);
    return rounding.scale;
}

// Activations, in as few and as equal blocks of neighbouring rows as possible. A block interleaves words of 4 activations
// of its rows: [K / 4, rows of the block, 4].
class QuantizedRows {
public:
    // `words` [rows, K / 4] and `scales` [rows]: memory to fill.
    QuantizedRows(long rows, long in_features, int32_t* words, float* scales)
        : num_rows_(rows), in_features_(in_features), blocks_(blocks_of(rows)), words_(words), scales_(scales) {}

    static long blocks_of(long rows) { return (rows + kInt8Rows - 1) / kInt8Rows; }

    long rows() const { return num_rows_; }
    long blocks() const { return blocks_; }
    // A block's first row; for `blocks()`, the number of rows.
    long first(long block) const { return block * num_rows_ / blocks_; }
    const int32_t* words(long block) const { return at(block); }
    float scale(long row) const { return scales_[row]; }

    // input(row): K numbers.
    template <class F, class Input>
    void quantize(long block, const Input& input) const {
        const long rows = first(block + 1) - first(block);
        for (long r = 0; r < rows; ++r) {
            const long row = first(block) + r;
            scales_[row] = round_row<F>(input(row), in_features_, at(block) + r, rows, kFlip);
        }
    }

private:
    int32_t* at(long block) const { return words_ + first(block) * ((in_features_ + 3) / 4); }

    const long num_rows_, in_features_, blocks_;
    int32_t* const words_;
    float* const scales_;
};

}  // namespace
