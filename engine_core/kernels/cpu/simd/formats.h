// The number types of weights and of the KV cache: how each is packed, multiplied and rounded.
//
// A product's left *factors* (queries, weights) are broadcast one step at a time; its right ones (keys, values) are
// vectors of columns, kPack rows interleaved. All sums are in float32.
#pragma once

#include <cstdint>
#include <cstring>

#include "interface.h"

namespace {

constexpr int kMostHeadDim = 1024;

struct Float32 {
    using Number = Float32;
    static constexpr bool kCoded = false;  // see attention/codes.h
    using Element = float;
    using Factor = float;
    using Column = Vec;
    static constexpr int kPack = 1;

    static Column column(const Element* at) { return load(at); }
    static Vec accumulate(Vec acc, const Factor* factor, Column column) {
        return multiply_add(splat(*factor), column, acc);
    }
    static void load_factors(Factor* to, const Element* from, long count) { std::memcpy(to, from, count * sizeof *to); }
    static Vec widen(const Element* at) { return load(at); }
    static void narrow(Element* at, Vec v) { store(at, v); }
    static void store_factors(Factor* at, Vec v) { store(at, v); }
};

struct Float16 {
    using Number = Float16;
    static constexpr bool kCoded = false;  // see attention/codes.h
    using Element = uint16_t;
    using Factor = float;
    using Column = Vec;
    static constexpr int kPack = 1;

    static Column column(const Element* at) { return load_float16(at); }
    static Vec accumulate(Vec acc, const Factor* factor, Column column) {
        return multiply_add(splat(*factor), column, acc);
    }
    static void load_factors(Factor* to, const Element* from, long count) {
        for (long i = 0; i < count; i += kLanes) store(to + i, load_float16(from + i));
    }
    static Vec widen(const Element* at) { return load_float16(at); }
    static void narrow(Element* at, Vec v) { store_float16(at, v); }
    static void store_factors(Factor* at, Vec v) { store(at, v); }
};

#ifdef __AVX512BF16__

struct BFloat16 {
    using Number = BFloat16;
    static constexpr bool kCoded = false;  // see attention/codes.h
    using Element = uint16_t;
    using Factor = uint16_t;
    using Column = Words;
    static constexpr int kPack = 2;

    static Column column(const Element* at) { return load_words(at); }
    static Column first_of_pairs(Column column) { return low_halves(column); }
    static Vec accumulate(Vec acc, const Factor* factor, Column column) {
        int32_t pair;
        std::memcpy(&pair, factor, sizeof pair);
        return add_pair_products(acc, _mm512_set1_epi32(pair), column);
    }
    static void load_factors(Factor* to, const Element* from, long count) { std::memcpy(to, from, count * sizeof *to); }
    static Vec widen(const Element* at) { return load_bfloat16(at); }
    static void narrow(Element* at, Vec v) { store_bfloat16(at, v); }
    static void store_factors(Factor* at, Vec v) { store_bfloat16(at, v); }
};

#else

struct BFloat16 {
    using Number = BFloat16;
    static constexpr bool kCoded = false;  // see attention/codes.h
    using Element = uint16_t;
    using Factor = float;
    struct Column {
        Vec low, high;
    };
    static constexpr int kPack = 2;

    static Column column(const Element* at) {
        const Words pairs = load_words(at);
        return {low_bfloat16(pairs), high_bfloat16(pairs)};
    }
    static Column first_of_pairs(Column column) { return {column.low, splat(0.0f)}; }
    static Vec accumulate(Vec acc, const Factor* factor, Column column) {
        return multiply_add(splat(factor[1]), column.high, multiply_add(splat(factor[0]), column.low, acc));
    }
    static void load_factors(Factor* to, const Element* from, long count) {
        for (long i = 0; i < count; i += kLanes) store(to + i, load_bfloat16(from + i));
    }
    static Vec widen(const Element* at) { return load_bfloat16(at); }
    static void narrow(Element* at, Vec v) { store_bfloat16(at, v); }
    static void store_factors(Factor* at, Vec v) { store(at, v); }
};

#endif

// f(the number type that a RinglineNumberType names).
template <class F>
int with_number_type(int32_t type, const F& f) {
    switch (type) {
        case kRinglineFloat32: return f(Float32{});
        case kRinglineFloat16: return f(Float16{});
        default: return f(BFloat16{});
    }
}

}  // namespace
