// Splits blocks of GGUF's quantized types (ggml-common.h) into codes and scales while weights are loaded.
// quantization/gguf_blocks.py does the same without kernels, and describes the parts.
#pragma once

#include <cstdint>
#include <cstring>

#include "interface.h"
#include "threads/team.h"

namespace {

constexpr int kGgufMostNumbers = 256;  // of a block

// Destinations of a block's parts; parts that a type lacks are not written.
struct GgufParts {
    uint8_t* codes;           // [numbers of a block]
    uint8_t *scales, *minima;  // per group: a byte, or two if the block is one group
    uint8_t *outer_scale, *outer_minimum;  // two bytes
};

inline void copy_float16(uint8_t* to, const uint8_t* from) { std::memcpy(to, from, 2); }
inline void copy_negative(uint8_t* to, const uint8_t* from) {
    to[0] = from[0];
    to[1] = from[1] ^ 0x80;
}

// Unpack numbers of `kBits` from `kSpans` spans of `kWidth` bytes: first the lowest of all bytes of a span.
template <int kSpans, int kWidth, int kBits>
inline void spread(const uint8_t* packed, uint8_t* to) {
    for (int span = 0; span < kSpans; ++span)
        for (int part = 0; part < 8 / kBits; ++part)
            for (int i = 0; i < kWidth; ++i)
                *to++ = packed[span * kWidth + i] >> part * kBits & ((1 << kBits) - 1);
}

// Likewise, but add them, times `factor`, and a constant.
template <int kSpans, int kWidth, int kBits>
inline void add_spread(const uint8_t* packed, int factor, int constant, uint8_t* to) {
    uint8_t high[kSpans * kWidth * 8 / kBits];
    spread<kSpans, kWidth, kBits>(packed, high);
    for (size_t i = 0; i < sizeof high; ++i) to[i] = static_cast<uint8_t>(to[i] + high[i] * factor + constant);
}

// Eight scales and eight minima of 6 bits in 12 bytes.
inline void spread_six_bit_pairs(const uint8_t* packed, const GgufParts& to) {
    for (int i = 0; i < 4; ++i) {
        const int scale = packed[i], minimum = packed[4 + i], both = packed[8 + i];
        to.scales[i] = scale & 63;
        to.minima[i] = minimum & 63;
        to.scales[4 + i] = (both & 15) | scale >> 6 << 4;
        to.minima[4 + i] = both >> 4 | minimum >> 6 << 4;
    }
}

struct GgufFourBits {  // Q4_0, IQ4_NL
    static constexpr int kNumbers = 32, kBytes = 18, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.scales, block);
        spread<1, 16, 4>(block + 2, to.codes);
    }
};

struct GgufQ4_1 {
    static constexpr int kNumbers = 32, kBytes = 20, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.scales, block);
        copy_float16(to.minima, block + 2);
        spread<1, 16, 4>(block + 4, to.codes);
    }
};

inline void read_five_bits(const uint8_t* packed, uint8_t* codes) {  // 32 in 4 + 16 bytes
    spread<1, 16, 4>(packed + 4, codes);
    uint32_t high;
    std::memcpy(&high, packed, sizeof high);
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] + (high >> i & 1) * 16);
}

struct GgufQ5_0 {
    static constexpr int kNumbers = 32, kBytes = 22, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.scales, block);
        read_five_bits(block + 2, to.codes);
    }
};

struct GgufQ5_1 {
    static constexpr int kNumbers = 32, kBytes = 24, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.scales, block);
        copy_float16(to.minima, block + 2);
        read_five_bits(block + 4, to.codes);
    }
};

struct GgufQ8_0 {
    static constexpr int kNumbers = 32, kBytes = 34, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.scales, block);
        for (int i = 0; i < kNumbers; ++i) to.codes[i] = block[2 + i] ^ 128;
    }
};

struct GgufQ2K {
    static constexpr int kNumbers = 256, kBytes = 84, kGroup = 16;
    static void read(const uint8_t* block, const GgufParts& to) {
        for (int i = 0; i < 16; ++i) {
            to.scales[i] = block[i] & 15;
            to.minima[i] = block[i] >> 4;
        }
        spread<2, 32, 2>(block + 16, to.codes);
        copy_float16(to.outer_scale, block + 80);
        copy_negative(to.outer_minimum, block + 82);
    }
};

struct GgufQ3K {
    static constexpr int kNumbers = 256, kBytes = 110, kGroup = 16;
    static void read(const uint8_t* block, const GgufParts& to) {
        spread<2, 32, 2>(block + 32, to.codes);
        add_spread<1, 32, 1>(block, 4, 4, to.codes);
        spread<1, 8, 4>(block + 96, to.scales);
        add_spread<1, 4, 2>(block + 104, 16, -32, to.scales);
        copy_float16(to.outer_scale, block + 108);
    }
};

struct GgufQ4K {
    static constexpr int kNumbers = 256, kBytes = 144, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.outer_scale, block);
        copy_negative(to.outer_minimum, block + 2);
        spread_six_bit_pairs(block + 4, to);
        spread<4, 32, 4>(block + 16, to.codes);
    }
};

struct GgufQ5K {
    static constexpr int kNumbers = 256, kBytes = 176, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.outer_scale, block);
        copy_negative(to.outer_minimum, block + 2);
        spread_six_bit_pairs(block + 4, to);
        spread<4, 32, 4>(block + 48, to.codes);
        add_spread<1, 32, 1>(block + 16, 16, 0, to.codes);
    }
};

struct GgufQ6K {
    static constexpr int kNumbers = 256, kBytes = 210, kGroup = 16;
    static void read(const uint8_t* block, const GgufParts& to) {
        spread<2, 64, 4>(block, to.codes);
        add_spread<2, 32, 2>(block + 128, 16, 0, to.codes);
        std::memcpy(to.scales, block + 192, 16);
        copy_float16(to.outer_scale, block + 208);
    }
};

struct GgufIQ4XS {
    static constexpr int kNumbers = 256, kBytes = 136, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        copy_float16(to.outer_scale, block);
        for (int i = 0; i < 8; ++i) {
            const int low = block[4 + i / 2] >> i % 2 * 4 & 15, high = block[2 + i / 4] >> i % 4 * 2 & 3;
            to.scales[i] = static_cast<uint8_t>(low + high * 16 - 32);
        }
        spread<8, 16, 4>(block + 8, to.codes);
    }
};

struct GgufMXFP4 {
    static constexpr int kNumbers = 32, kBytes = 17, kGroup = 32;
    static void read(const uint8_t* block, const GgufParts& to) {
        const uint16_t power = block[0] ? block[0] << 7 : 0x40;  // a bfloat16: 2 to the power of block[0] − 127
        std::memcpy(to.scales, &power, sizeof power);
        spread<1, 16, 4>(block + 1, to.codes);
    }
};

template <class Type>
int take_apart(const RinglineGgufBlocks& args) {
    constexpr bool kNested = Type::kNumbers == kGgufMostNumbers;
    constexpr long kScaleBytes = kNested ? Type::kNumbers / Type::kGroup : 2;  // of a block
    parallel_for(args.num_threads, args.rows, 1, [&](long row) {
        const uint8_t* block = args.input + row * args.blocks * Type::kBytes;
        for (long at = row * args.blocks; at < (row + 1) * args.blocks; ++at, block += Type::kBytes) {
            GgufParts to = {args.codes + at * Type::kNumbers, args.scales + at * kScaleBytes};
            if (args.minima) to.minima = args.minima + at * kScaleBytes;
            if (args.outer_scales) to.outer_scale = args.outer_scales + at * 2;
            if (args.outer_minima) to.outer_minimum = args.outer_minima + at * 2;
            Type::read(block, to);
        }
    });
    return kRinglineDone;
}

inline int gguf_blocks(const RinglineGgufBlocks& args) {
    switch (args.block_type) {
        case kRinglineQ4_0: return take_apart<GgufFourBits>(args);
        case kRinglineQ4_1: return take_apart<GgufQ4_1>(args);
        case kRinglineQ5_0: return take_apart<GgufQ5_0>(args);
        case kRinglineQ5_1: return take_apart<GgufQ5_1>(args);
        case kRinglineQ8_0: return take_apart<GgufQ8_0>(args);
        case kRinglineQ2_K: return take_apart<GgufQ2K>(args);
        case kRinglineQ3_K: return take_apart<GgufQ3K>(args);
        case kRinglineQ4_K: return take_apart<GgufQ4K>(args);
        case kRinglineQ5_K: return take_apart<GgufQ5K>(args);
        case kRinglineQ6_K: return take_apart<GgufQ6K>(args);
        case kRinglineIQ4_NL: return take_apart<GgufFourBits>(args);
        case kRinglineIQ4_XS: return take_apart<GgufIQ4XS>(args);
        default: return take_apart<GgufMXFP4>(args);
    }
}

}  // namespace
