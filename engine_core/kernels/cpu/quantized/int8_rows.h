// Rows of numbers, rounded to bytes with one scale per row, as the products want them.
#pragma once

#include "simd/formats.h"

namespace {

constexpr int32_t kInfinity = 0x7f800000;  // the bits of it
constexpr float kSmallest = 1e-30f;        // rows of smaller numbers are taken for zeros: 127 / x must be finite

// Exclusive-ored with a word of 4 bytes, it adds kOffset to each.
constexpr int32_t kFlip = static_cast<int32_t>(kOffset * 0x01010101u);

// How numbers become bytes: multiplied by the factor and rounded. The scale undoes it: NaN where there is an infinity or a
// NaN among them.
struct Rounding {
    float factor, scale;
};

// For numbers whose greatest magnitude has these bits.
inline Rounding rounding_for(int32_t bits) {
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    if (bits >= kInfinity) return {0.0f, __builtin_nanf("")};
    return magnitude >= kSmallest ? Rounding{127.0f / magnitude, magnitude / 127.0f} : Rounding{0.0f, 0.0f};
}

// Rounds `count` numbers to bytes of up to 127 and puts words of 4, exclusive-ored with `flip`, at every `step`-th place of
// `to`; fills the last word with zeros. Returns the scale: NaN where there is an infinity or a NaN.
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
        // Infinity times zero is NaN, which rounds to any byte: with a scale of NaN it does not matter.
        int32_t words[kLanes / 4];
        round_to_bytes(words, multiply(F::widen(numbers), factor));
        for (long w = 0; w < kLanes / 4 && first + w < (count + 3) / 4; ++w) to[(first + w) * step] = words[w] ^ flip;
    };
    for (long i = 0; i < whole; i += kLanes) round(from + i, i / 4);
    if (whole < count) round(tail, whole / 4);
    return rounding.scale;
}

// Activations, in blocks of neighbouring rows, as few as it takes and as equal as can be. Within a block, a word of 4
// activations of each row follows the other: [K / 4, rows of the block, 4].
class QuantizedRows {
public:
    // `words` [rows, K / 4] and `scales` [rows] are the memory for them.
    QuantizedRows(long rows, long in_features, int32_t* words, float* scales)
        : num_rows_(rows), in_features_(in_features), blocks_(blocks_of(rows)), words_(words), scales_(scales) {}

    static long blocks_of(long rows) { return (rows + kInt8Rows - 1) / kInt8Rows; }

    long rows() const { return num_rows_; }
    long blocks() const { return blocks_; }
    // The first row of a block, or for `blocks()` the number of rows.
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
