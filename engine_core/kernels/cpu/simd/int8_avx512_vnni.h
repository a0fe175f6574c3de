// 16 columns at a time: AVX-512 with dot products of bytes (VNNI), which multiply unsigned by signed bytes.
#pragma once

#include "simd/avx512_bf16.h"

namespace {

// The largest block of rows: with two vectors of columns, 24 of 32 registers hold sums.
constexpr int kInt8Rows = 12;
// Added to activations, to make them unsigned.
constexpr int kOffset = 128;
// The largest block of rows with codes, which have one vector of columns.
constexpr int kCodeRows = 8;
// Subtracted from byte codes, so that the instruction can multiply them.
constexpr int kByteOffset = 0;

using Sums = __m512i;
using Quads = __m512i;  // four weights of each column

inline Sums splat_integer(int32_t x) { return _mm512_set1_epi32(x); }
inline Sums load_sums(const int32_t* at) { return _mm512_loadu_si512(at); }
inline void store_sums(int32_t* at, Sums sums) { _mm512_storeu_si512(at, sums); }
inline Sums add_integers(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
inline Sums subtract_integers(Sums a, Sums b) { return _mm512_sub_epi32(a, b); }
inline Sums multiply_integers(Sums a, Sums b) { return _mm512_mullo_epi32(a, b); }
inline Sums widen_to_integers(const int8_t* at) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline Sums widen_to_integers(const uint8_t* at) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
// Bytes from two places, widened to pairs; and sums + products of two 16-bit integers with the pairs.
inline Quads widen_in_pairs(const int8_t* first, const int8_t* second) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
    return _mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)));
}
inline Sums add_products_of_pairs(Sums sums, int32_t integers, Quads pairs) {
    return _mm512_dpwssd_epi32(sums, pairs, _mm512_set1_epi32(integers));
}
inline Vec to_floats(Sums sums) { return _mm512_cvtepi32_ps(sums); }

// The bits of |v|: ordered like the numbers, infinity above them and NaN above all.
inline Sums magnitudes(Vec v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)); }
inline Sums larger(Sums a, Sums b) { return _mm512_max_epi32(a, b); }
inline int32_t largest(Sums v) { return _mm512_reduce_max_epi32(v); }

// The nearest integers, ties to even, as bytes.
inline void round_to_bytes(int32_t* words, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}

inline Quads load_quads(const int8_t* at) { return _mm512_loadu_si512(at); }

// sums + the products of four activations with four weights of each column.
inline Sums add_products(Sums sums, int32_t activations, Quads weights) {
    return _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(activations), weights);
}

// a · b + c, rounded once, on every processor.
inline Vec fused_multiply_add(Vec a, Vec b, Vec c) { return multiply_add(a, b, c); }

// Exact for integers.
inline float sum_of(Vec v) { return _mm512_reduce_add_ps(v); }

// A line's codes of 4 bits, and of 8.
inline Quads low_nibbles(Quads line) { return _mm512_and_si512(line, _mm512_set1_epi8(15)); }
inline Quads high_nibbles(Quads line) { return low_nibbles(_mm512_srli_epi16(line, 4)); }
inline Quads byte_codes(Quads line) { return line; }
// low | (high & mask)
inline Quads with_bits_of(Quads low, Quads high, int mask) {
    return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}

// The numbers of codes up to 15.
inline Quads load_table(const uint8_t* at) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
inline Quads look_up(Quads table, Quads codes) { return _mm512_shuffle_epi8(table, codes); }

// sums + the products of four activations with four codes of each column, of up to 7 bits and of 8.
inline Sums add_code_products(Sums sums, int32_t activations, Quads codes) {
    return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(activations));
}
inline Sums add_byte_products(Sums sums, int32_t activations, Quads codes) {
    return add_code_products(sums, activations, codes);
}

}  // namespace
