// Vectors of 4 floats in the compiler's notation, for any processor. Multiplication and addition round separately.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int kLanes = 4;
constexpr int kBlockRows = 4;
constexpr int kBlockColumns = 2;
constexpr int kPlainBlockRows = kBlockRows;
// Of a tile of weights that are multiplied at a time, as for AVX2.
constexpr long kPartBytes = 64 << 10;
constexpr int kAheadSteps = 16;  // after which more of the next part is read ahead

typedef float Vec __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef int32_t Integers __attribute__((vector_size(16)));

template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline Vec splat(float x) { return Vec{x, x, x, x}; }
inline Vec load(const float* at) {
    Vec v;
    std::memcpy(&v, at, sizeof v);
    return v;
}
inline void store(float* at, Vec v) { std::memcpy(at, &v, sizeof v); }
inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec subtract(Vec a, Vec b) { return a - b; }
inline Vec multiply(Vec a, Vec b) { return a * b; }
inline Vec divide(Vec a, Vec b) { return a / b; }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec maximum_of(Vec a, Vec b) { return a > b ? a : b; }

// For |v| < 2²²: adding 1.5 · 2²³ rounds, as numbers that large have no fraction. Smaller v are limited to −4e6.
inline Vec round_to_integer(Vec v) {
    const Vec large = splat(12582912.0f), limited = v < splat(-4e6f) ? splat(-4e6f) : v;
    return limited + large - large;
}

// v · 2ⁿ for integers n, where neither v nor the result is denormal.
inline Vec scale_by_power(Vec v, Vec n) {
    const Integers integers = __builtin_convertvector(n == n ? n : splat(0.0f), Integers);
    return bits_as<Vec>(bits_as<Words>(v) + (bits_as<Words>(integers) << 23));
}

// v, but 0 where x < limit.
inline Vec zero_where_less(Vec v, Vec x, Vec limit) { return x < limit ? splat(0.0f) : v; }

// Whether any lane of v is greater than limit's, or NaN.
inline bool any_not_up_to(Vec v, Vec limit) {
    return !(v[0] <= limit[0] && v[1] <= limit[1] && v[2] <= limit[2] && v[3] <= limit[3]);
}

// The first `count` lanes of v, then others.
inline Vec first_lanes(Vec v, int count, Vec others) { return Integers{0, 1, 2, 3} < count ? v : others; }

inline float largest_lane(Vec v) {
    const float low = v[0] > v[1] ? v[0] : v[1], high = v[2] > v[3] ? v[2] : v[3];
    return low > high ? low : high;
}

// Pairs of bfloat16, the earlier in a word's low half.
inline Words load_words(const void* at) {
    Words w;
    std::memcpy(&w, at, sizeof w);
    return w;
}
template <int kBits>
inline Words shifted_right(Words w) {
    return w >> kBits;
}

// Numbers looked up by words' low bits.
template <int kMask>
struct Table {
    explicit Table(const float* numbers) : numbers(numbers) {}
    Vec operator[](Words w) const {
        return Vec{numbers[w[0] & kMask], numbers[w[1] & kMask], numbers[w[2] & kMask], numbers[w[3] & kMask]};
    }
    static constexpr bool is_computed() { return false; }
    const float* const numbers;
};
using Table16 = Table<15>;
template <int>
using LargeTable = Table<255>;

inline Vec low_bfloat16(Words w) { return bits_as<Vec>(w << 16); }
inline Vec high_bfloat16(Words w) { return bits_as<Vec>(w & 0xffff0000u); }

inline float widened_float16(uint16_t half) {
    const uint32_t magnitude = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    const float finite = bits_as<float>(magnitude) * 0x1p112f;
    const uint32_t value = (half & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : bits_as<uint32_t>(finite);
    return bits_as<float>(value | sign);
}
// Rounds to nearest, ties to even.
inline uint16_t narrowed_float16(float x) {
    const uint32_t all = bits_as<uint32_t>(x), magnitude = all & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u)
        half = 0x7e00u;
    else if (magnitude >= bits_as<uint32_t>(65520.0f))
        half = 0x7c00u;
    else if (magnitude < bits_as<uint32_t>(0x1p-14f))
        half = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
    else
        half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    return static_cast<uint16_t>(half | (all >> 16 & 0x8000u));
}
// Rounds to nearest, ties to even.
inline uint16_t narrowed_bfloat16(float x) {
    const uint32_t bits = bits_as<uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline Vec load_float16(const uint16_t* at) {
    return Vec{widened_float16(at[0]), widened_float16(at[1]), widened_float16(at[2]), widened_float16(at[3])};
}
inline void store_float16(uint16_t* at, Vec v) {
    for (int lane = 0; lane < kLanes; ++lane) at[lane] = narrowed_float16(v[lane]);
}
inline Vec load_bfloat16(const uint16_t* at) { return low_bfloat16(Words{at[0], at[1], at[2], at[3]}); }
inline void store_bfloat16(uint16_t* at, Vec v) {
    for (int lane = 0; lane < kLanes; ++lane) at[lane] = narrowed_bfloat16(v[lane]);
}

template <class Byte>
inline Vec widen_bytes(const Byte* at) {
    return Vec{static_cast<float>(at[0]), static_cast<float>(at[1]), static_cast<float>(at[2]), static_cast<float>(at[3])};
}

}  // namespace
