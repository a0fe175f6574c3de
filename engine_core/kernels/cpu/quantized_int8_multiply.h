// y = x · Wᵀ + b with a weight of integer codes and rows that are rounded to bytes, block of inputs by block.
//
// The sums of a block are exact integers below 2²⁴. They are scaled into one chain per output, blocks ascending: so a row's
// result has the same bits whatever the other rows, the threads and the instruction set.
#pragma once

#include "quantized_groups.h"
#include "quantized_int8_rows.h"

namespace {

// Sums of so few rows wait for each other: they are computed as two each.
constexpr int kShortChainRows = kLanes > 8 ? 3 : 0;

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

// Neighbouring groups of inputs of a panel of a weight, and of a block of rows.
struct PanelPart {
    const uint8_t* codes;
    const uint8_t* ahead;  // as much to read meanwhile
    const float *scales, *negated_zeros, *minima;  // [groups], kTileOutputs apart; the latter may be null
    RowsOfBlock x;
    long groups;
    long first_block, end_block;
};

// Adds the part to results of R rows, kTileOutputs apart.
template <int R, class Codes>
void add_products(const Codes& kind, const InputBlocks& inputs, const PanelPart& part, float* results) {
    constexpr int kVectors = kPanel / kLanes;
    constexpr int kChains = R <= kShortChainRows ? Codes::kWords : 1;
    Vec y[R][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) y[r][v] = load(results + r * kTileOutputs + v * kLanes);
    const int8_t* line = reinterpret_cast<const int8_t*>(part.codes);
    const uint8_t* ahead = part.ahead;
    const int32_t* words = part.x.words + inputs.start(part.first_block) / 4 * R;
    long block = part.first_block;
    for (long group = 0; group < part.groups; ++group)
        for (long of_group = inputs.per_group(); of_group > 0 && block < part.end_block; --of_group, ++block) {
            Sums sums[kChains][R][kVectors];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) {
                    sums[0][r][v] = splat_integer(part.x.starts[block * R + r]);
                    if (kChains > 1) sums[kChains - 1][r][v] = splat_integer(0);
                }
            long lines = inputs.size(block) / (4 * Codes::kWords);
            do {
                Quads codes[kVectors][Codes::kWords];
                prefetch(ahead);
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) kind.unpack(load_quads(line + v * kLanes * 4), codes[v]);
#pragma GCC unroll 2
                for (int word = 0; word < Codes::kWords; ++word)
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                        for (int v = 0; v < kVectors; ++v)
                            sums[word % kChains][r][v] =
                                Codes::accumulate(sums[word % kChains][r][v], words[word * R + r], codes[v][word]);
                words += Codes::kWords * R;
                line += kLineBytes;
                ahead += kLineBytes;
            } while (--lines > 0);
            const float* const row_sums = part.x.sums + block * R;
            const float* const row_scales = part.x.scales + block * R;
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                const long at = group * kTileOutputs + v * kLanes;
                Vec products[R];
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r)
                    products[r] = to_floats(kChains > 1 ? add_integers(sums[0][r][v], sums[kChains - 1][r][v]) : sums[0][r][v]);
                if (part.negated_zeros) {
                    // Exact, like all integers below 2²⁴.
                    const Vec zeros = load(part.negated_zeros + at);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) products[r] = multiply_add(zeros, splat(row_sums[r]), products[r]);
                }
                const Vec scales = load(part.scales + at);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r)
                    y[r][v] = fused_multiply_add(multiply(products[r], splat(row_scales[r])), scales, y[r][v]);
                if (part.minima) {
                    const Vec minima = load(part.minima + at);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) y[r][v] = fused_multiply_add(splat(row_sums[r]), minima, y[r][v]);
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
class CodeTiles {
public:
    explicit CodeTiles(const RinglineQuantizedWeight& weight)
        : weight_(weight), groups_(weight), inputs_(weight.in_features, weight.group_size), codes_(weight),
          panel_bytes_(code_lines(weight) * kLineBytes) {}

    const InputBlocks& inputs() const { return inputs_; }
    const IntegerCodes& codes() const { return codes_; }
    bool has_minima() const { return groups_.has_minima(); }
    long count() const { return (weight_.out_features + kTileOutputs - 1) / kTileOutputs; }

    // Results [rows, kTileOutputs] of some blocks of rows; meanwhile the tile `ahead` is read.
    void multiply(long tile, const CodeRows& rows, long first_block, long end_block, long ahead, float* results) const {
        codes_.with_kind([&](const auto& kind) { multiply_by(kind, tile, rows, first_block, end_block, ahead, results); });
    }

private:
    // Parts of groups, all rows by one after the other: the numbers of the groups are read once.
    template <class Codes>
    void multiply_by(const Codes& kind, long tile, const CodeRows& rows, long first_block, long end_block, long ahead,
                     float* results) const {
        GroupNumbers numbers;
        const long first_row = rows.first(first_block);
        for (long i = 0; i < (rows.first(end_block) - first_row) * kTileOutputs; i += kLanes) store(results + i, splat(0.0f));
        for (long group = 0; group < groups_.count(); group += kMostPartGroups) {
            const long left = groups_.count() - group, count = left < kMostPartGroups ? left : kMostPartGroups;
            groups_.read(tile * kTilePanels, group, count, numbers);
            groups_.prefetch_groups(ahead * kTilePanels, group, count);
            PanelPart part{nullptr, nullptr, nullptr, nullptr, nullptr, {}, count, group * inputs_.per_group(), inputs_.count()};
            if (left > count) part.end_block = (group + count) * inputs_.per_group();
            const long offset = inputs_.start(part.first_block) / (4 * Codes::kWords) * kLineBytes;
            for (long block = first_block; block < end_block; ++block) {
                part.x = rows[block];
                const long row = rows.first(block);
                with_constant<kCodeRows>(static_cast<int>(rows.first(block + 1) - row), [&](auto constant) {
                    for (long p = 0; p < kTilePanels; ++p) {
                        part.codes = panel(tile, p) + offset;
                        part.ahead = block == first_block ? panel(ahead, p) + offset : part.codes;
                        part.scales = numbers.scales + p * kPanel;
                        part.negated_zeros = groups_.has_zeros() ? numbers.negated_zeros + p * kPanel : nullptr;
                        part.minima = groups_.has_minima() ? numbers.minima + p * kPanel : nullptr;
                        add_products<constant.value>(kind, inputs_, part, results + (row - first_row) * kTileOutputs + p * kPanel);
                    }
                });
            }
        }
    }

    const uint8_t* panel(long tile, long panel) const { return weight_.codes + (tile * kTilePanels + panel) * panel_bytes_; }

    const RinglineQuantizedWeight& weight_;
    const PackedGroups groups_;
    const InputBlocks inputs_;
    const IntegerCodes codes_;
    const long panel_bytes_;
};

}  // namespace
