// 16 columns at a time: AVX-512 with its dot products of bytes (VNNI), which multiply unsigned by signed ones.
#pragma once

#include "simd_avx512_bf16.h"

namespace {

// The largest block of rows: with two vectors of columns, 24 of 32 registers hold sums.
constexpr int kInt8Rows = 12;
// What is added to activations, so that they are unsigned.
constexpr int kOffset = 128;

using Sums = __m512i;
using Quads = __m512i;  // four weights of each column

inline Sums splat_integer(int32_t x) { return _mm512_set1_epi32(x); }
inline Sums load_sums(const int32_t* at) { return _mm512_loadu_si512(at); }
inline void store_sums(int32_t* at, Sums sums) { _mm512_storeu_si512(at, sums); }
inline Sums multiply_integers(Sums a, Sums b) { return _mm512_mullo_epi32(a, b); }
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

}  // namespace
