// Vectors of 16 floats: AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kLanes = 16;
// The largest block of accumulators, in rows and vectors: 24 of 32 registers, which hides a product's latency.
constexpr int kBlockRows = 6;
constexpr int kBlockColumns = 4;
constexpr int kPlainBlockRows = kBlockRows;
// Of a tile of weights that are multiplied at a time: two parts and some rows must fit into the L2 cache.
constexpr long kPartBytes = 128 << 10;
constexpr int kAheadSteps = 2;  // after which more of the next part is read ahead

using Vec = __m512;
using Words = __m512i;

inline Vec splat(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* at) { return _mm512_loadu_ps(at); }
inline void store(float* at, Vec v) { _mm512_storeu_ps(at, v); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec subtract(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec multiply(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec divide(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec maximum_of(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec round_to_integer(Vec v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// v · 2ⁿ for integers n.
inline Vec scale_by_power(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }

// v, but 0 where x < limit.
inline Vec zero_where_less(Vec v, Vec x, Vec limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
}

// Whether any lane of v is greater than limit's, or NaN.
inline bool any_not_up_to(Vec v, Vec limit) { return _mm512_cmp_ps_mask(v, limit, _CMP_NLE_UQ) != 0; }

// The first `count` lanes of v, then others.
inline Vec first_lanes(Vec v, int count, Vec others) {
    const int lanes = count < 0 ? 0 : count > kLanes ? kLanes : count;
    return _mm512_mask_mov_ps(others, static_cast<__mmask16>((1u << lanes) - 1), v);
}

inline float largest_lane(Vec v) { return _mm512_reduce_max_ps(v); }

// Pairs of bfloat16, the earlier in a word's low half.
inline Words load_words(const void* at) { return _mm512_loadu_si512(at); }

template <int kBits>
inline Words shifted_right(Words w) {
    return _mm512_srli_epi32(w, kBits);
}

// Numbers looked up by words' low 4 bits.
struct Table16 {
    explicit Table16(const float* numbers) : numbers(_mm512_loadu_ps(numbers)) {}
    Vec operator[](Words w) const { return _mm512_permutexvar_ps(w, numbers); }
    static constexpr bool is_computed() { return false; }
    const Vec numbers;
};

// By the low 8 bits.
template <int>
struct LargeTable {
    explicit LargeTable(const float* numbers) : numbers(numbers) {}
    Vec operator[](Words w) const { return _mm512_i32gather_ps(_mm512_and_si512(w, _mm512_set1_epi32(255)), numbers, 4); }
    static constexpr bool is_computed() { return false; }
    const float* const numbers;
};

inline Words low_halves(Words w) { return _mm512_and_si512(w, _mm512_set1_epi32(0x0000ffff)); }

inline Vec load_float16(const uint16_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
inline void store_float16(uint16_t* at, Vec v) {
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(at), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Vec load_bfloat16(const uint16_t* at) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline Vec widen_bytes(const int8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
inline Vec widen_bytes(const uint8_t* at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}

#ifdef __AVX512BF16__

inline void store_bfloat16(uint16_t* at, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}

// acc + the products of two pairs of bfloat16 in each word.
inline Vec add_pair_products(Vec acc, Words a, Words b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

#else  // what is written in vectors of bytes runs on processors that cannot multiply bfloat16

inline Vec low_bfloat16(Words w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
inline Vec high_bfloat16(Words w) {
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline void store_bfloat16(uint16_t* at, Vec v) {
    const Words bits = _mm512_castps_si512(v);
    const Words odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const Words rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const Words quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const Words right = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(_mm512_srli_epi32(right, 16)));
}

#endif

}  // namespace
