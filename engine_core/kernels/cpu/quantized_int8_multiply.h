// y = x · Wᵀ + b with a weight of integer codes and rows that are rounded to bytes, block of inputs by block.
//
// The sums of a block are exact integers below 2²⁴. They are scaled into one chain per output, blocks ascending: so a row's
// result has the same bits whatever the other rows, the threads and the instruction set.
#pragma once

#include "linear.h"
#include "quantized_int8_rows.h"

namespace {

constexpr int kLineBytes = 64;  // 4 of each of a panel's outputs

// How a line becomes words of 4 codes, and how those are multiplied.
struct Nibbles {
    static constexpr int kWords = 2;

    void unpack(Quads line, Quads (&codes)[kWords]) const {
        codes[0] = low_nibbles(line);
        codes[1] = high_nibbles(line);
    }
    static Sums accumulate(Sums sums, int32_t activations, Quads codes) { return add_code_products(sums, activations, codes); }
};

// Those that stand for numbers of a table.
struct TableNibbles : Nibbles {
    Quads table;

    explicit TableNibbles(Quads table) : table(table) {}

    void unpack(Quads line, Quads (&codes)[kWords]) const {
        codes[0] = look_up(table, low_nibbles(line));
        codes[1] = look_up(table, high_nibbles(line));
    }
};

struct ByteCodes {
    static constexpr int kWords = 1;

    void unpack(Quads line, Quads (&codes)[kWords]) const { codes[0] = byte_codes(line); }
    static Sums accumulate(Sums sums, int32_t activations, Quads codes) { return add_byte_products(sums, activations, codes); }
};

// What the groups of a panel have.
class PanelScales {
public:
    PanelScales(const RinglineQuantizedWeight& weight, long panel)
        : weight_(weight),
          groups_((weight.in_features + weight.group_size - 1) / weight.group_size),
          first_(panel * groups_),
          per_outer_(weight.outer_scales ? weight.outer_size / weight.group_size : 1),
          first_outer_(panel * ((groups_ + per_outer_ - 1) / per_outer_)) {}

    bool has_zeros() const { return weight_.zeros != nullptr; }
    bool has_minima() const { return weight_.minima != nullptr; }

    // Those of the outputs from `lane` on.
    Vec scales(long group, int lane) const { return numbers(weight_.scales, weight_.outer_scales, group, lane); }
    Vec minima(long group, int lane) const { return numbers(weight_.minima, weight_.outer_minima, group, lane); }
    Vec zeros(long group, int lane) const { return widen(weight_.zeros + place(group, lane)); }

private:
    long place(long group, int lane) const { return (first_ + group) * kPanel + lane; }

    Vec numbers(const void* own, const void* outer, long group, int lane) const {
        if (!outer) return of_type(own, place(group, lane));
        const Vec inner = widen(static_cast<const int8_t*>(own) + place(group, lane));
        return multiply(of_type(outer, (first_outer_ + group / per_outer_) * kPanel + lane), inner);
    }

    Vec of_type(const void* numbers, long place) const {
        switch (weight_.scale_type) {
            case kRinglineFloat32: return load(static_cast<const float*>(numbers) + place);
            case kRinglineFloat16: return load_float16(static_cast<const uint16_t*>(numbers) + place);
            default: return load_bfloat16(static_cast<const uint16_t*>(numbers) + place);
        }
    }

    template <class Byte>
    static Vec widen(const Byte* at) {
        int32_t lanes[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = at[lane];
        return to_floats(load_sums(lanes));
    }

    const RinglineQuantizedWeight& weight_;
    const long groups_, first_, per_outer_, first_outer_;
};

// Results of R rows, kTileOutputs apart, with a panel; meanwhile as much is read `ahead`, unless that is null.
template <int R, class Codes>
void multiply_panel(const Codes& kind, const RowsOfBlock& x, const InputBlocks& inputs, const uint8_t* panel,
                    const PanelScales& scales, const uint8_t* ahead, float* results) {
    constexpr int kVectors = kPanel / kLanes;
    Vec y[R][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) y[r][v] = splat(0.0f);
    const int32_t* words = x.words;
    for (long block = 0; block < inputs.count(); ++block) {
        Sums sums[R][kVectors];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) sums[r][v] = splat_integer(x.starts[block * R + r]);
        for (long lines = inputs.size(block) / (4 * Codes::kWords); lines > 0; --lines) {
            Quads codes[kVectors][Codes::kWords];
            if (ahead) prefetch(ahead);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v)
                kind.unpack(load_quads(reinterpret_cast<const int8_t*>(panel) + v * kLanes * 4), codes[v]);
#pragma GCC unroll 2
            for (int word = 0; word < Codes::kWords; ++word)
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                    for (int v = 0; v < kVectors; ++v)
                        sums[r][v] = Codes::accumulate(sums[r][v], words[word * R + r], codes[v][word]);
            words += Codes::kWords * R;
            panel += kLineBytes;
            ahead += ahead ? kLineBytes : 0;
        }
        const long group = inputs.group(block);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            const Vec scale = scales.scales(group, v * kLanes);
            Vec products[R];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) products[r] = to_floats(sums[r][v]);
            if (scales.has_zeros()) {
                // Exact, like all integers below 2²⁴.
                const Vec zeros = subtract(splat(0.0f), scales.zeros(group, v * kLanes));
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) products[r] = multiply_add(zeros, splat(x.sums[block * R + r]), products[r]);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                y[r][v] = fused_multiply_add(multiply(products[r], splat(x.scales[block * R + r])), scale, y[r][v]);
            if (scales.has_minima()) {
                const Vec minima = scales.minima(group, v * kLanes);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const Vec sum = splat(x.sums[block * R + r] * x.scales[block * R + r]);
                    y[r][v] = fused_multiply_add(sum, minima, y[r][v]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) store(results + r * kTileOutputs + v * kLanes, y[r][v]);
}

// What integers a weight's codes stand for: a code plus `first`, or the number at its place in the table plus `first`; all
// of that times `unit`.
class IntegerCodes {
public:
    explicit IntegerCodes(const RinglineQuantizedWeight& weight)
        : bits_(weight.bits), first_(static_cast<int32_t>(weight.codebook[0])) {
        if (bits_ == 8) {
            first_ += kByteOffset;
            return;
        }
        for (int code = 0; code < kCodes; ++code) has_table_ |= weight.codebook[code] != weight.codebook[0] + code;
        if (!has_table_) return;
        // FP4: multiples of a half.
        unit_ = 0.5f;
        float least = weight.codebook[0];
        for (int code = 1; code < kCodes; ++code) least = weight.codebook[code] < least ? weight.codebook[code] : least;
        first_ = static_cast<int32_t>(least / unit_);
        for (int code = 0; code < kCodes; ++code)
            table_[code] = static_cast<uint8_t>(static_cast<int32_t>(weight.codebook[code] / unit_) - first_);
    }

    int bits() const { return bits_; }
    int32_t first() const { return first_; }
    float unit() const { return unit_; }

    // visit(how to unpack them).
    template <class Visit>
    void with_kind(const Visit& visit) const {
        if (bits_ == 8) return visit(ByteCodes{});
        if (has_table_) return visit(TableNibbles(load_table(table_)));
        visit(Nibbles{});
    }

private:
    static constexpr int kCodes = 16;

    const int bits_;
    int32_t first_;
    float unit_ = 1.0f;
    bool has_table_ = false;
    uint8_t table_[kCodes] = {};
};

// A weight, or one of several that follow each other.
class CodePanels {
public:
    explicit CodePanels(const RinglineQuantizedWeight& weight)
        : weight_(weight), inputs_(weight.in_features, weight.group_size), codes_(weight),
          panel_bytes_(weight.in_features * weight.bits / 8 * kPanel) {}

    const InputBlocks& inputs() const { return inputs_; }
    const IntegerCodes& codes() const { return codes_; }
    long tiles() const { return (weight_.out_features + kTileOutputs - 1) / kTileOutputs; }
    const uint8_t* panel(long panel) const { return weight_.codes + panel * panel_bytes_; }

    // Results [rows of the block, kTileOutputs] with a tile; meanwhile the tile at `ahead` is read, unless that is null.
    void multiply(const RowsOfBlock& x, int rows, long tile, const uint8_t* ahead, float* results) const {
        codes_.with_kind([&](const auto& kind) {
            with_constant<kCodeRows>(rows, [&](auto constant) {
                for (int p = 0; p < kTilePanels; ++p) {
                    const long number = tile * kTilePanels + p;
                    multiply_panel<constant.value>(kind, x, inputs_, panel(number), PanelScales(weight_, number),
                                                   ahead ? ahead + p * panel_bytes_ : nullptr, results + p * kPanel);
                }
            });
        });
    }

private:
    const RinglineQuantizedWeight& weight_;
    const InputBlocks inputs_;
    const IntegerCodes codes_;
    const long panel_bytes_;
};

}  // namespace
