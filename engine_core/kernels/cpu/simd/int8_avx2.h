// 8 columns at a time: AVX2.
#pragma once

#include "simd/avx2.h"

namespace {

// The largest block of rows: with four vectors of columns, 8 of 16 registers hold sums.
constexpr int kInt8Rows = 2;
constexpr int kOffset = 0;
constexpr int kCodeRows = 2;
constexpr int kByteOffset = 128;

using Sums = __m256i;
using Quads = __m256i;  // four weights of each column

inline Sums splat_integer(int32_t x) { return _mm256_set1_epi32(x); }
inline Sums load_sums(const int32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
inline void store_sums(int32_t* at, Sums sums) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), sums); }
inline Sums add_integers(Sums a, Sums b) { return _mm256_add_epi32(a, b); }
inline Sums subtract_integers(Sums a, Sums b) { return _mm256_sub_epi32(a, b); }
inline Sums multiply_integers(Sums a, Sums b) { return _mm256_mullo_epi32(a, b); }
inline Sums widen_to_integers(const int8_t* at) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}
inline Sums widen_to_integers(const uint8_t* at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}
// Bytes from two places, widened to pairs; and sums + products of two 16-bit integers with the pairs.
inline Quads widen_in_pairs(const int8_t* first, const int8_t* second) {
    const __m128i a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(first));
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(second));
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
}
inline Sums add_products_of_pairs(Sums sums, int32_t integers, Quads pairs) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi32(integers)));
}
inline Vec to_floats(Sums sums) { return _mm256_cvtepi32_ps(sums); }

// The bits of |v|: ordered like the numbers, infinity above them and NaN above all.
inline Sums magnitudes(Vec v) { return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff)); }
inline Sums larger(Sums a, Sums b) { return _mm256_max_epi32(a, b); }
inline int32_t largest(Sums v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0b01001110));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0b10110001)));
}

// The nearest integers, ties to even, as bytes.
inline void round_to_bytes(int32_t* words, Vec v) {
    const __m256i integers = _mm256_cvtps_epi32(v);
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(words), _mm_packs_epi16(halves, halves));
}

inline Quads load_quads(const int8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

// sums + the products of four activations with four weights of each column.
//
// The instruction multiplies unsigned by signed bytes and saturates sums of two products at 2¹⁵ − 1, which |w| · (± a)
// with both up to 127 cannot reach.
inline Sums add_products(Sums sums, int32_t activations, Quads weights) {
    const __m256i signed_by_weights = _mm256_sign_epi8(_mm256_set1_epi32(activations), weights);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), signed_by_weights);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// a · b + c, rounded once, on every processor.
inline Vec fused_multiply_add(Vec a, Vec b, Vec c) { return multiply_add(a, b, c); }

// Exact for integers.
inline float sum_of(Vec v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// A line's codes of 4 bits, and of 8.
inline Quads low_nibbles(Quads line) { return _mm256_and_si256(line, _mm256_set1_epi8(15)); }
inline Quads high_nibbles(Quads line) { return low_nibbles(_mm256_srli_epi16(line, 4)); }
inline Quads byte_codes(Quads line) { return _mm256_xor_si256(line, _mm256_set1_epi8(-128)); }
// low | (high & mask)
inline Quads with_bits_of(Quads low, Quads high, int mask) {
    return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(static_cast<char>(mask))));
}

// The numbers of codes up to 15.
inline Quads load_table(const uint8_t* at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline Quads look_up(Quads table, Quads codes) { return _mm256_shuffle_epi8(table, codes); }

// sums + the products of four activations with four codes of each column: of up to 7 bits, 2 · 127 · 127 at most, or bytes.
inline Sums add_code_products(Sums sums, int32_t activations, Quads codes) {
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi32(activations));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// |−128| · 127 · 2 is below 2¹⁵, too.
inline Sums add_byte_products(Sums sums, int32_t activations, Quads codes) { return add_products(sums, activations, codes); }

}  // namespace
