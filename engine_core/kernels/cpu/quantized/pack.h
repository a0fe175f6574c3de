// Packs quantized weights while a layer is built.
//
// A panel of 16 outputs is a sequence of lines of 64 bytes, 32 bits per output. With 4-bit codes, a line has 8 inputs:
// the even ones in an output's low 16 bits, the odd ones in its high 16 bits, each from low to high. With 8-bit codes:
// 4 inputs, likewise. So shifting a line right by a code moves the next pair of inputs to the start of every 16 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "interface.h"
#include "threads/team.h"

namespace {

constexpr int kPackedOutputs = 16;
constexpr int kPackedTilePanels = 4;
constexpr long kLineBytes = 64;

inline long code_lines(const RinglineQuantizedWeight& weight) {  // of a panel
    return weight.in_features * weight.bits / 32;
}
inline long groups_of(const RinglineQuantizedWeight& weight) {
    return (weight.in_features + weight.group_size - 1) / weight.group_size;
}
inline long outer_groups_of(const RinglineQuantizedWeight& weight) {
    return weight.outer_size ? (weight.in_features + weight.outer_size - 1) / weight.outer_size : 0;
}

// 8 inputs' codes in 32 bits.
inline uint32_t packed_eight(const uint8_t* codes) {
    uint64_t all;
    std::memcpy(&all, codes, sizeof all);
    const auto gather = [](uint64_t spread) {  // 4 codes, 16 bits apart
        spread |= spread >> 12;
        return static_cast<uint32_t>((spread & 0xff) | (spread >> 24 & 0xff00));
    };
    constexpr uint64_t kEven = 0x000f000f000f000f;
    return gather(all & kEven) | gather(all >> 8 & kEven) << 16;
}

// Of 4 inputs.
inline uint32_t packed_four(const uint8_t* codes) {
    return codes[0] | codes[2] << 8 | codes[1] << 16 | static_cast<uint32_t>(codes[3]) << 24;
}

template <int kEach>
inline uint32_t packed(const uint8_t* codes) {
    return kEach == 8 ? packed_eight(codes) : packed_four(codes);
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
            if (weight_.bits == 4)
                pack_codes<8>(place(first + panel), first_row, from, to);
            else
                pack_codes<4>(place(first + panel), first_row, from, to);
            for (int lane = from; lane < to; ++lane) pack_groups(place(first + panel), lane, first_row + lane);
        });
    }

private:
    long place(long panel) const {
        return args_.panel + panel / args_.tile_panels * kPackedTilePanels + panel % args_.tile_panels;
    }

    // For outputs [from, to) of a panel, some lines at a time: along each output, then across.
    template <int kEach>
    void pack_codes(long panel, long first_row, int from, int to) const {
        constexpr int kLines = 16;
        const long inputs = weight_.in_features, lines = code_lines(weight_);
        auto* const panel_lines = const_cast<uint8_t*>(weight_.codes) + panel * lines * kLineBytes;
        uint32_t words[kPackedOutputs][kLines];
        for (long line = 0; line < lines; line += kLines) {
            const int count = static_cast<int>(std::min<long>(kLines, lines - line));
            for (int lane = from; lane < to; ++lane) {
                const uint8_t* const codes = args_.codes + (first_row + lane) * inputs + line * kEach;
                for (int i = 0; i < count; ++i) words[lane][i] = packed<kEach>(codes + i * kEach);
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
