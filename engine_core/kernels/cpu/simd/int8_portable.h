// 4 columns at a time, in the compiler's notation, for any processor.
#pragma once

#include "simd/portable.h"

namespace {

constexpr int kInt8Rows = 2;
constexpr int kOffset = 0;
constexpr int kCodeRows = 2;
constexpr int kByteOffset = 128;

using Sums = Integers;
typedef int8_t Quads __attribute__((vector_size(16)));  // four weights of each column

inline Sums splat_integer(int32_t x) { return Sums{x, x, x, x}; }
inline Sums load_sums(const int32_t* at) {
    Sums sums;
    std::memcpy(&sums, at, sizeof sums);
    return sums;
}
inline void store_sums(int32_t* at, Sums sums) { std::memcpy(at, &sums, sizeof sums); }
inline Sums add_integers(Sums a, Sums b) { return a + b; }
inline Sums subtract_integers(Sums a, Sums b) { return a - b; }
inline Sums multiply_integers(Sums a, Sums b) { return a * b; }
template <class Byte>
inline Sums widen_to_integers(const Byte* at) {
    return Sums{at[0], at[1], at[2], at[3]};
}
// Bytes from two places, in pairs; and sums + products of two 16-bit integers with the pairs.
struct BytePairs {
    Sums first, second;
};
inline BytePairs widen_in_pairs(const int8_t* first, const int8_t* second) {
    return {widen_to_integers(first), widen_to_integers(second)};
}
inline Sums add_products_of_pairs(Sums sums, int32_t integers, const BytePairs& pairs) {
    return sums + static_cast<int16_t>(integers & 0xffff) * pairs.first + (integers >> 16) * pairs.second;
}
inline Vec to_floats(Sums sums) { return __builtin_convertvector(sums, Vec); }

// The bits of |v|: ordered like the numbers, infinity above them and NaN above all.
inline Sums magnitudes(Vec v) { return bits_as<Sums>(v) & 0x7fffffff; }
inline Sums larger(Sums a, Sums b) { return a > b ? a : b; }
inline int32_t largest(Sums v) {
    const int32_t low = v[0] > v[1] ? v[0] : v[1], high = v[2] > v[3] ? v[2] : v[3];
    return low > high ? low : high;
}

// The nearest integers, ties to even, as bytes.
inline void round_to_bytes(int32_t* words, Vec v) {
    const Sums integers = __builtin_convertvector(round_to_integer(v), Sums);
    int8_t bytes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) bytes[lane] = static_cast<int8_t>(integers[lane]);
    std::memcpy(words, bytes, sizeof bytes);
}

inline Quads load_quads(const int8_t* at) {
    Quads quads;
    std::memcpy(&quads, at, sizeof quads);
    return quads;
}

// sums + the products of four activations with four weights of each column.
inline Sums add_products(Sums sums, int32_t activations, Quads weights) {
    int8_t four[4];
    std::memcpy(four, &activations, sizeof four);
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) sums[lane] += four[i] * weights[lane * 4 + i];
    return sums;
}

// a · b + c, rounded once, on every processor.
inline Vec fused_multiply_add(Vec a, Vec b, Vec c) {
    for (int lane = 0; lane < kLanes; ++lane) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
}

// Exact for integers.
inline float sum_of(Vec v) { return v[0] + v[1] + v[2] + v[3]; }

// A line's codes of 4 bits, and of 8.
inline Quads low_nibbles(Quads line) { return line & 15; }
inline Quads high_nibbles(Quads line) { return line >> 4 & 15; }
inline Quads byte_codes(Quads line) { return line ^ -128; }
inline Quads with_bits_of(Quads low, Quads high, int mask) { return low | (high & static_cast<int8_t>(mask)); }

// The numbers of codes up to 15.
inline Quads load_table(const uint8_t* at) {
    Quads table;
    std::memcpy(&table, at, sizeof table);
    return table;
}
inline Quads look_up(Quads table, Quads codes) { return __builtin_shuffle(table, codes); }

// sums + the products of four activations with four codes of each column, of up to 7 bits and bytes.
inline Sums add_code_products(Sums sums, int32_t activations, Quads codes) { return add_products(sums, activations, codes); }
inline Sums add_byte_products(Sums sums, int32_t activations, Quads codes) { return add_products(sums, activations, codes); }

}  // namespace
