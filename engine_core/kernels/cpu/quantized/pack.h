// Packs quantized weights while a layer is built.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "interface.h"
#include "quantized/code_lines.h"
#include "threads/team.h"

namespace {

constexpr int kPackedOutputs = 16;
constexpr int kPackedTilePanels = 4;

inline long groups_of(const RinglineQuantizedWeight& weight) {
    return (weight.in_features + weight.group_size - 1) / weight.group_size;
}
inline long outer_groups_of(const RinglineQuantizedWeight& weight) {
    return weight.outer_size ? (weight.in_features + weight.outer_size - 1) / weight.outer_size : 0;
}

inline uint64_t eight_codes(const uint8_t* at) {
    uint64_t codes;
    std::memcpy(&codes, at, sizeof codes);
    return codes;
}

// The low 4 bits of 8 inputs' codes in 32 bits.
inline uint32_t packed_eight(uint64_t codes) {
    const auto gather = [](uint64_t spread) {  // 4 codes, 16 bits apart
        spread |= spread >> 12;
        return static_cast<uint32_t>((spread & 0xff) | (spread >> 24 & 0xff00));
    };
    constexpr uint64_t kEven = 0x000f000f000f000f;
    return gather(codes & kEven) | gather(codes >> 8 & kEven) << 16;
}

// Of 4 inputs.
inline uint32_t packed_four(const uint8_t* codes) {
    return codes[0] | codes[2] << 8 | codes[1] << 16 | static_cast<uint32_t>(codes[3]) << 24;
}

// The words of CodeLines<kBits>::kInputs inputs.
template <int kBits>
void pack_words(const uint8_t* codes, uint32_t* words) {
    if constexpr (kBits == 8) {
        *words = packed_four(codes);
    } else {
        constexpr int kAbove = CodeLines<kBits>::kAbove, kLines = CodeLines<kBits>::kInputs / 8;
        constexpr uint32_t kLowNibbles = 0x0f0f0f0f;
        if constexpr (kAbove) words[kLines] = 0;
        for (int line = 0; line < kLines; ++line) {
            const uint64_t eight = eight_codes(codes + line * 8);
            words[line] = packed_eight(eight);
            if constexpr (kAbove) {
                const uint32_t above = packed_eight(eight >> 4);
                const uint32_t both = (above & kLowNibbles) | (above >> (4 - kAbove) & kLowNibbles);
                words[kLines] |= both << 2 * kAbove * line;
            }
        }
    }
}

class QuantizedPacking {
public:
    explicit QuantizedPacking(const RinglineQuantizedPacking& args) : args_(args), weight_(*args.weight) {}

    void run() const {
        const long first = args_.first / kPackedOutputs, end = (args_.first + args_.rows - 1) / kPackedOutputs + 1;
        parallel_for(args_.num_threads, end - first, 1, [&](long panel) {
            const long first_row = (first + panel) * kPackedOutputs - args_.first;  // of lane 0; may be negative
            const int from = static_cast<int>(first_row < 0 ? -first_row : 0);
            const int to = static_cast<int>(std::min<long>(kPackedOutputs, args_.rows - first_row));
            with_bits(weight_.bits, [&](auto bits) { pack_codes<bits.value>(place(first + panel), first_row, from, to); });
            for (int lane = from; lane < to; ++lane) pack_groups(place(first + panel), lane, first_row + lane);
        });
    }

private:
    long place(long panel) const {
        return args_.panel + panel / args_.tile_panels * kPackedTilePanels + panel % args_.tile_panels;
    }

    // For outputs [from, to) of a panel, some lines at a time: along each output, then across.
    template <int kBits>
    void pack_codes(long panel, long first_row, int from, int to) const {
        using Lines = CodeLines<kBits>;
        constexpr int kTogether = 16 / Lines::kCount * Lines::kCount;
        const long inputs = weight_.in_features, lines = code_lines(weight_);
        auto* const panel_lines = const_cast<uint8_t*>(weight_.codes) + panel * lines * kLineBytes;
        uint32_t words[kPackedOutputs][kTogether];
        for (long line = 0; line < lines; line += kTogether) {
            const int count = static_cast<int>(std::min<long>(kTogether, lines - line));
            for (int lane = from; lane < to; ++lane) {
                const uint8_t* codes = args_.codes + (first_row + lane) * inputs + line / Lines::kCount * Lines::kInputs;
                for (int i = 0; i < count; i += Lines::kCount, codes += Lines::kInputs) pack_words<kBits>(codes, words[lane] + i);
            }
            for (int i = 0; i < count; ++i) {
                auto* const to_line = panel_lines + (line + i) * kLineBytes;
                for (int lane = from; lane < to; ++lane) std::memcpy(to_line + lane * 4, &words[lane][i], 4);
            }
        }
    }

    void pack_groups(long panel, long lane, long row) const {
        const long groups = groups_of(weight_), outer = outer_groups_of(weight_);
        const int bytes = weight_.scale_type == kRinglineFloat32 ? 4 : 2, inner = outer ? 1 : bytes;
        put(weight_.scales, args_.scales, groups, inner, panel, lane, row);
        put(weight_.outer_scales, args_.outer_scales, outer, bytes, panel, lane, row);
        put(weight_.zeros, args_.zeros, groups, 1, panel, lane, row);
        put(weight_.minima, args_.minima, groups, inner, panel, lane, row);
        put(weight_.outer_minima, args_.outer_minima, outer, bytes, panel, lane, row);
    }

    // Numbers of one output's groups.
    static void put(const void* packed, const void* given, long count, int bytes, long panel, long lane, long row) {
        if (!packed) return;
        auto* const to = static_cast<char*>(const_cast<void*>(packed)) + (panel * count * kPackedOutputs + lane) * bytes;
        const auto* const from = static_cast<const char*>(given) + row * count * bytes;
        for (long i = 0; i < count; ++i) std::memcpy(to + i * kPackedOutputs * bytes, from + i * bytes, bytes);
    }

    const RinglineQuantizedPacking& args_;
    const RinglineQuantizedWeight& weight_;
};

inline int quantized_pack(const RinglineQuantizedPacking& args) {
    if (args.rows > 0) QuantizedPacking(args).run();
    return 0;
}

}  // namespace
