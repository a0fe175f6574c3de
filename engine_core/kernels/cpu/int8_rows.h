// Rows of activations, rounded to bytes with one scale per row, as the products want them.
#pragma once

#include <cstring>

#include "memory.h"

namespace {

constexpr int32_t kInfinity = 0x7f800000;  // the bits of it
constexpr float kSmallest = 1e-30f;        // rows of smaller numbers are taken for zeros: 127 / x must be finite

struct Float32Numbers {
    using Element = float;
    static Vec widen(const Element* at) { return load(at); }
    static void narrow(Element* at, Vec v) { store(at, v); }
};
struct Float16Numbers {
    using Element = uint16_t;
    static Vec widen(const Element* at) { return load_float16(at); }
    static void narrow(Element* at, Vec v) { store_float16(at, v); }
};
struct BFloat16Numbers {
    using Element = uint16_t;
    static Vec widen(const Element* at) { return load_bfloat16(at); }
    static void narrow(Element* at, Vec v) { store_bfloat16(at, v); }
};

// In blocks of neighbouring rows, as few as it takes and as equal as can be. Within a block, a word of 4 activations of
// each row follows the other: [K / 4, rows of the block, 4].
class QuantizedRows {
public:
    QuantizedRows(long rows, long in_features)
        : num_rows_(rows),
          in_features_(in_features),
          words_((in_features + 3) / 4),
          blocks_((rows + kInt8Rows - 1) / kInt8Rows),
          buffer_(padded_bytes<int32_t>(rows * words_) + padded_bytes<float>(rows)),
          scales_(reinterpret_cast<float*>(buffer_.at(padded_bytes<int32_t>(rows * words_)))) {}

    bool failed() const { return buffer_.failed(); }
    long blocks() const { return blocks_; }
    // The first row of a block, or for `blocks()` the number of rows.
    long first(long block) const { return block * num_rows_ / blocks_; }
    const int32_t* words(long block) const { return reinterpret_cast<int32_t*>(buffer_.at(0)) + first(block) * words_; }
    float scale(long row) const { return scales_[row]; }

    // `input`: rows of K numbers, `stride` apart.
    template <class Numbers>
    void quantize(long block, const typename Numbers::Element* input, long stride) {
        const long rows = first(block + 1) - first(block);
        int32_t* const to = reinterpret_cast<int32_t*>(buffer_.at(0)) + first(block) * words_;
        for (long r = 0; r < rows; ++r) {
            const long row = first(block) + r;
            scales_[row] = quantize_row<Numbers>(input + row * stride, to + r, rows);
        }
    }

private:
    // Puts words at every `step`-th place of `to`; returns the scale. A row with an infinity or NaN has the scale NaN.
    template <class Numbers>
    float quantize_row(const typename Numbers::Element* from, int32_t* to, long step) const {
        const long whole = in_features_ / kLanes * kLanes, words_of_vector = kLanes / 4;
        typename Numbers::Element tail[kLanes] = {};
        std::memcpy(tail, from + whole, (in_features_ - whole) * sizeof *tail);
        Sums most = magnitudes(Numbers::widen(tail));
        for (long i = 0; i < whole; i += kLanes) most = larger(most, magnitudes(Numbers::widen(from + i)));
        const int32_t bits = largest(most);
        float magnitude;
        std::memcpy(&magnitude, &bits, sizeof magnitude);
        const bool usable = bits < kInfinity && magnitude >= kSmallest;
        const Vec factor = splat(usable ? 127.0f / magnitude : 0.0f);
        int32_t words[kLanes / 4];
        for (long i = 0; i < whole; i += kLanes) {
            round_to_bytes(words, multiply(Numbers::widen(from + i), factor));
            for (long w = 0; w < words_of_vector; ++w) to[(i / 4 + w) * step] = words[w];
        }
        round_to_bytes(words, multiply(Numbers::widen(tail), factor));
        for (long w = 0; whole / 4 + w < words_; ++w) to[(whole / 4 + w) * step] = words[w];
        return usable ? magnitude / 127.0f : bits < kInfinity ? 0.0f : __builtin_nanf("");
    }

    const long num_rows_, in_features_, words_, blocks_;
    Buffer buffer_;
    float* const scales_;
};

}  // namespace
