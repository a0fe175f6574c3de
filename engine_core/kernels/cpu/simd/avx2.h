// Vectors of 8 floats: AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kLanes = 8;
// The largest block of accumulators, in rows and vectors: 8 of 16 registers leave room for both halves of packed columns.
constexpr int kBlockRows = 4;
constexpr int kBlockColumns = 2;
constexpr int kPlainBlockRows = 6;  // of columns without halves: more sums at a time hide what a multiplication waits for
// Of a tile of weights that are multiplied at a time: some columns of it stay in the L1 cache while all rows are multiplied by them.
constexpr long kPartBytes = 64 << 10;
constexpr int kAheadSteps = 16;  // after which more of the next part is read ahead

using Vec = __m256;
using Words = __m256i;

inline Vec splat(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* at) { return _mm256_loadu_ps(at); }
inline void store(float* at, Vec v) { _mm256_storeu_ps(at, v); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec subtract(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec multiply(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec divide(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec maximum_of(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec round_to_integer(Vec v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// v · 2ⁿ for integers n, where neither v nor the result is denormal.
inline Vec scale_by_power(Vec v, Vec n) {
    const Words exponents = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), exponents));
}

// v, but 0 where x < limit.
inline Vec zero_where_less(Vec v, Vec x, Vec limit) { return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), v); }

// Whether any lane of v is greater than limit's, or NaN.
inline bool any_not_up_to(Vec v, Vec limit) { return _mm256_movemask_ps(_mm256_cmp_ps(v, limit, _CMP_NLE_UQ)) != 0; }

// The first `count` lanes of v, then others.
inline Vec first_lanes(Vec v, int count, Vec others) {
    const Words lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(others, v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes)));
}

inline float largest_lane(Vec v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// Pairs of bfloat16, the earlier in a word's low half.
inline Words load_words(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
template <int kBits>
inline Words shifted_right(Words w) {
    return _mm256_srli_epi32(w, kBits);
}

// Numbers looked up by words' low bits. Successive integers are computed instead, which takes fewer operations than to
// look up one of 16 numbers, and far fewer than to gather one of more.
template <int kCount>
class Successive {
public:
    explicit Successive(const float* numbers)
        : found(are_successive(numbers)), first_(_mm256_set1_epi32(found ? static_cast<int>(numbers[0]) : 0)) {}
    Vec operator[](Words codes) const { return _mm256_cvtepi32_ps(_mm256_add_epi32(codes, first_)); }
    const bool found;

private:
    static bool are_successive(const float* numbers) {
        const float first = numbers[0];
        bool are = first >= -kCount && first <= kCount && first == static_cast<float>(static_cast<int>(first));
        for (int code = 1; are && code < kCount; ++code) are = numbers[code] == first + static_cast<float>(code);
        return are;
    }

    const Words first_;
};

struct Table16 {
    explicit Table16(const float* numbers)
        : successive(numbers), low(_mm256_loadu_ps(numbers)), high(_mm256_loadu_ps(numbers + 8)) {}
    Vec operator[](Words w) const {
        if (successive.found) return successive[_mm256_and_si256(w, _mm256_set1_epi32(15))];
        const Vec is_high = _mm256_castsi256_ps(_mm256_slli_epi32(w, 28));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, w), _mm256_permutevar8x32_ps(high, w), is_high);
    }
    bool is_computed() const { return successive.found; }
    const Successive<16> successive;
    const Vec low, high;
};

// By the low 8 bits.
template <int kCount>
struct LargeTable {
    explicit LargeTable(const float* numbers) : successive(numbers), numbers(numbers) {}
    Vec operator[](Words w) const {
        const Words codes = _mm256_and_si256(w, _mm256_set1_epi32(255));
        if (successive.found) return successive[codes];
        return _mm256_i32gather_ps(numbers, codes, 4);
    }
    bool is_computed() const { return successive.found; }
    const Successive<kCount> successive;
    const float* const numbers;
};

inline Vec low_bfloat16(Words w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
inline Vec high_bfloat16(Words w) {
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline Vec load_float16(const uint16_t* at) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
inline void store_float16(uint16_t* at, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline Vec load_bfloat16(const uint16_t* at) {
    return low_bfloat16(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
inline Vec widen_bytes(const int8_t* at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}
inline Vec widen_bytes(const uint8_t* at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}

inline void store_bfloat16(uint16_t* at, Vec v) {
    const Words bits = _mm256_castps_si256(v);
    const Words odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const Words rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const Words quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const Words is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const Words high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const Words packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0b1000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(packed));
}

}  // namespace
