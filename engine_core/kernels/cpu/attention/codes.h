// The number types of an 8-bit cache: a byte for each number of a key or value, and a scale for each token and head.
//
// A number is its code's value times the scale. Both are computed when the token is written, from that token and head
// alone, so that no bit depends on when it was written or what else was. Every number type represents code values
// exactly: products use the number type, and scales are applied to scores and weights, in float32.
#pragma once

#include "simd/formats.h"

namespace {

typedef uint32_t WordLanes __attribute__((vector_size(4 * kLanes)));
typedef int32_t IntegerLanes __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalfLanes __attribute__((vector_size(2 * kLanes)));
typedef uint8_t ByteLanes __attribute__((vector_size(kLanes)));

inline WordLanes load_byte_lanes(const uint8_t* at) {
    ByteLanes bytes;
    std::memcpy(&bytes, at, sizeof bytes);
    return __builtin_convertvector(bytes, WordLanes);
}
// Pairs of bytes, the earlier in a word's lowest byte.
inline WordLanes load_byte_pairs(const uint8_t* at) {
    HalfLanes pairs;
    std::memcpy(&pairs, at, sizeof pairs);
    return __builtin_convertvector(pairs, WordLanes);
}

// Integers from −127 to 127.
struct Int8Codes {
    static constexpr float kLargest = 127.0f;

    // The values of the lowest bytes.
    static Vec value(WordLanes w) {
        return (Vec)__builtin_convertvector((IntegerLanes)(w << 24) >> 24, FloatLanes);
    }
    // The codes of numbers, which may slightly exceed kLargest.
    static WordLanes code(Vec v) {
        const FloatLanes whole = (FloatLanes)round_to_integer(v);
        return (WordLanes)__builtin_convertvector(whole, IntegerLanes);
    }

#ifdef __AVX512BF16__
    // 32 values as bfloat16.
    static Words halves(const uint8_t* at) {
        const __m128i* const bytes = reinterpret_cast<const __m128i*>(at);
        const Vec low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
        const Vec high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
        // Take the upper halves: the lower ones are zero.
        return _mm512_permutex2var_epi16(_mm512_castps_si512(low), odd_halves(), _mm512_castps_si512(high));
    }
#endif

private:
    typedef float FloatLanes __attribute__((vector_size(4 * kLanes)));

#ifdef __AVX512BF16__
    static Words odd_halves() {
        alignas(64) static constexpr int16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                         33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
        return _mm512_load_si512(kOdd);
    }
#endif
};

// A sign, an exponent e of four bits and a fraction m of three: ±2^(e − 15) · (1 + m / 8). Only a zero scale makes zero:
// smaller numbers become the smallest value, 2⁻¹⁵, which is a 61,000th of the largest.
struct Float8Codes {
    static constexpr float kLargest = 1.875f;

    static Vec value(WordLanes w) { return (Vec)((w & 0x80) << 24 | (w & 0x7f) << 20 | kSmallest); }
    static WordLanes code(Vec v) {
        const WordLanes bits = (WordLanes)v, size = bits & 0x7fffffff;
        const IntegerLanes rounded = (IntegerLanes)((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (kSmallest >> 20);
        const IntegerLanes least = rounded < 0 ? rounded * 0 : rounded;
        return (WordLanes)(least > 127 ? least * 0 + 127 : least) | (bits >> 24 & 0x80);
    }

#ifdef __AVX512BF16__
    static Words halves(const uint8_t* at) {
        const Words codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
        const Words sign_and_size = _mm512_set1_epi16(static_cast<short>(0x87f0));
        constexpr int kAndOr = 0xea;  // a & b | c
        return _mm512_ternarylogic_epi32(
            _mm512_slli_epi16(codes, 4), sign_and_size, _mm512_set1_epi16(kSmallest >> 16), kAndOr);
    }
#endif

private:
    static constexpr int kSmallest = 0x38000000;  // 2⁻¹⁵ in float32
};

// The number type F with a cache of codes.
template <class F, class Codes>
struct Coded : F {
    using Number = F;
    using Element = uint8_t;
    using Column = typename F::Column;
    static constexpr bool kCoded = true;

    static Column column(const uint8_t* at) {
        if constexpr (F::kPack == 1) {
            return Codes::value(load_byte_lanes(at));
        } else {
#ifdef __AVX512BF16__
            return Codes::halves(at);
#else
            const WordLanes pairs = load_byte_pairs(at);
            return {Codes::value(pairs), Codes::value(pairs >> 8)};
#endif
        }
    }

    // Expand `count` numbers, a multiple of 32, or of 16 if F packs none. Prefetches as many codes at `ahead`.
    static void expand(const uint8_t* at, const uint8_t* ahead, long count, typename F::Element* to) {
        for (long i = 0; i < count; i += kLanes * F::kPack) {
            if (i % 64 == 0) __builtin_prefetch(ahead + i, 0, 2);
#ifdef __AVX512BF16__
            if constexpr (F::kPack == 2) {
                _mm512_storeu_si512(to + i, Codes::halves(at + i));
                continue;
            }
#endif
            for (int part = 0; part < F::kPack; ++part)
                F::narrow(to + i + part * kLanes, Codes::value(load_byte_lanes(at + i + part * kLanes)));
        }
    }

    // Round `count` numbers, a multiple of 16, to codes; returns their scale, as bfloat16: NaN if they include a NaN or
    // an infinity, 0 if all are negligibly small.
    static uint16_t encode(const typename F::Element* from, long count, uint8_t* codes) {
        WordLanes largest = {};
        for (long i = 0; i < count; i += kLanes) {
            const WordLanes size = (WordLanes)F::widen(from + i) & 0x7fffffff;
            largest = size > largest ? size : largest;
        }
        uint32_t greatest = 0;
        for (int lane = 0; lane < kLanes; ++lane) greatest = largest[lane] > greatest ? largest[lane] : greatest;
        float size;
        std::memcpy(&size, &greatest, sizeof size);
        const bool broken = greatest >= 0x7f800000, zero = size < 0x1p-100f;
        const uint16_t scale = broken ? 0x7fc0 : zero ? 0 : nearest_bfloat16(size / Codes::kLargest);
        const uint32_t bits = static_cast<uint32_t>(scale) << 16;
        float step;
        std::memcpy(&step, &bits, sizeof step);
        const Vec inverse = splat(broken || zero ? 0.0f : 1.0f / step);
        for (long i = 0; i < count; i += kLanes) {
            const Vec number = broken ? splat(0.0f) : multiply(F::widen(from + i), inverse);
            const ByteLanes bytes = __builtin_convertvector(Codes::code(number), ByteLanes);
            std::memcpy(codes + i, &bytes, sizeof bytes);
        }
        return scale;
    }

private:
    static uint16_t nearest_bfloat16(float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

// f(the cache's number type): F, or F with the codes that a RinglineCacheType names.
template <class F, class Visit>
int with_cache_type(int32_t type, const Visit& visit) {
    switch (type) {
        case kRinglineInt8Cache: return visit(Coded<F, Int8Codes>{});
        case kRinglineFloat8Cache: return visit(Coded<F, Float8Codes>{});
        default: return visit(F{});
    }
}

}  // namespace
