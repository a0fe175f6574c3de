// y = x · Wᵀ + b with a weight of integer codes and rows rounded to bytes, by blocks of inputs.
//
// Sums over a part of a block, whose codes share a scale, are exact integers. A block adds them up, parts ascending, times
// their scales, then the input sums times the minima; exactly, if scales are bytes times outer scales. Blocks are scaled
// and added into one chain per output, ascending. So a row's result has the same bits whatever the other rows, the
// threads and the instruction set.
#pragma once

#include <type_traits>

#include "linear/linear.h"
#include "quantized/int8_activations_rows.h"
#include "quantized/pack.h"

namespace {

// With so few rows, chains of sums are latency-bound: each is split in two.
constexpr int kShortChainRows = kLanes > 8 ? 3 : 0;

// Unpacks lines to words of 4 codes, and multiplies them. word<n>(at): word n of the lines from `at` on, for a vector of
// outputs.
struct Nibbles {
    using Lines = CodeLines<4>;
    static constexpr int kWords = 2;

    template <int kWord>
    Quads word(const int8_t* at) const {
        const Quads line = load_quads(at);
        return kWord % 2 == 0 ? low_nibbles(line) : high_nibbles(line);
    }
    static Sums accumulate(Sums sums, int32_t activations, Quads codes) { return add_code_products(sums, activations, codes); }
};

// 4-bit codes that index a table of numbers.
struct TableNibbles : Nibbles {
    Quads table;

    explicit TableNibbles(Quads table) : table(table) {}

    template <int kWord>
    Quads word(const int8_t* at) const {
        return look_up(table, Nibbles::word<kWord>(at));
    }
};

// Nibbles, and the bits above them.
template <int kBits>
struct SplitNibbles : Nibbles {
    using Lines = CodeLines<kBits>;
    static constexpr int kWords = Lines::kInputs / 4;

    template <int kWord>
    Quads word(const int8_t* at) const {
        const Quads last = load_quads(at + (Lines::kCount - 1) * kLineBytes);
        const Quads low = Nibbles::word<kWord>(at + kWord / 2 * kLineBytes);
        return with_bits_of(low, shifted_above<kBits, kWord>(last), kAboveMask<kBits>);
    }
};

struct ByteCodes {
    using Lines = CodeLines<8>;
    static constexpr int kWords = 1;

    template <int>
    Quads word(const int8_t* at) const {
        return byte_codes(load_quads(at));
    }
    static Sums accumulate(Sums sums, int32_t activations, Quads codes) { return add_byte_products(sums, activations, codes); }
};

// A panel's numbers, group by group.
class PanelNumbers {
public:
    PanelNumbers(int32_t type, const void* numbers, long panel, long groups)
        : type_(type),
          step_(kPanel * (type == kRinglineFloat32 ? sizeof(float) : sizeof(uint16_t))),
          at_(static_cast<const char*>(numbers) + panel * groups * step_) {}

    void prefetch_ahead(long groups) const { prefetch(at_ + groups * step_); }

    // Of the outputs from `lane` on.
    Vec operator[](int lane) const {
        switch (type_) {
            case kRinglineFloat32: return load(reinterpret_cast<const float*>(at_) + lane);
            case kRinglineFloat16: return load_float16(reinterpret_cast<const uint16_t*>(at_) + lane);
            default: return load_bfloat16(reinterpret_cast<const uint16_t*>(at_) + lane);
        }
    }

    void advance() { at_ += step_; }

private:
    const int32_t type_;
    const long step_;
    const char* at_;
};

// Scales or minima of a panel's groups; adds sums times them over a block, in floats. Reads ahead those of a panel that is
// `ahead` panels further.
class NumbersOfGroups {
public:
    using Total = Vec;

    NumbersOfGroups(const RinglineQuantizedWeight& weight, const void* own, const void*, const InputBlocks&, long panel, long ahead)
        : numbers_(weight.scale_type, own, panel, groups_of(weight)), ahead_(ahead * groups_of(weight)) {}

    static Total begin() { return splat(0.0f); }
    Vec of_group(int lane) const { return numbers_[lane]; }
    static Total add_sums(Total total, Sums sums, Vec number) { return fused_multiply_add(to_floats(sums), number, total); }
    void end_group() {
        numbers_.prefetch_ahead(ahead_);
        numbers_.advance();
    }
    Vec end(Total total, int) const { return total; }
    void end_block() {}

    // Add the minima of a block's parts, from the current one on, times the rows' input sums.
    template <int R>
    void add_minima(const int32_t* row_sums, int parts, int lane, Vec (&block)[R]) const {
        PanelNumbers minima = numbers_;
        for (int part = 0; part < parts; ++part, row_sums += R, minima.advance())
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                block[r] = fused_multiply_add(to_floats(splat_integer(row_sums[r])), minima[lane], block[r]);
    }

private:
    PanelNumbers numbers_;
    const long ahead_;  // groups
};

// The same for bytes times outer numbers: in integers, multiplied by the outer numbers at the end.
class BytesOfGroups {
public:
    using Total = Sums;

    BytesOfGroups(const RinglineQuantizedWeight& weight, const void* own, const void* outer, const InputBlocks& inputs,
                  long panel, long ahead)
        : bytes_(static_cast<const int8_t*>(own) + panel * groups_of(weight) * kPanel),
          ahead_(ahead * groups_of(weight) * kPanel),
          outer_ahead_(ahead * outer_groups_of(weight)),
          outer_(weight.scale_type, outer, panel, outer_groups_of(weight)),
          blocks_(weight.outer_size / inputs.size()),
          left_(blocks_) {}

    static Total begin() { return splat_integer(0); }
    Sums of_group(int lane) const { return widen_to_integers(bytes_ + lane); }
    static Total add_sums(Total total, Sums sums, Sums byte) { return add_integers(total, multiply_integers(sums, byte)); }
    void end_group() {
        prefetch(bytes_ + ahead_);
        bytes_ += kPanel;
    }
    Vec end(Total total, int lane) const { return multiply(to_floats(total), outer_[lane]); }
    void end_block() {
        if (--left_ > 0) return;
        outer_.prefetch_ahead(outer_ahead_);
        outer_.advance();
        left_ = blocks_;
    }

    // Two parts at a time, as sums are paired (quantized/int8_activations_rows.h).
    template <int R>
    void add_minima(const int32_t* row_sums, int parts, int lane, Vec (&block)[R]) const {
        Sums sums[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sums[r] = splat_integer(0);
        for (int part = 0; part < parts; part += 2) {
            const int8_t* const first = bytes_ + part * kPanel + lane;
            const auto minima = widen_in_pairs(first, part + 1 < parts ? first + kPanel : first);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sums[r] = add_products_of_pairs(sums[r], row_sums[part * R + r], minima);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) block[r] = fused_multiply_add(to_floats(sums[r]), outer_[lane], block[r]);
    }

private:
    const int8_t* bytes_;
    const long ahead_, outer_ahead_;  // bytes, and outer groups
    PanelNumbers outer_;
    const long blocks_;  // per outer number
    long left_;
};

// R rows' results, kTileOutputs apart, with a panel; reads panel `then` ahead.
template <int R, class Groups, class Codes>
void multiply_panel(const Codes& kind, const RinglineQuantizedWeight& weight, long panel, const RowsOfBlock& x,
                    const InputBlocks& inputs, long then, float* results) {
    using Total = typename Groups::Total;
    constexpr int kVectors = kPanel / kLanes;
    constexpr int kChains = R <= kShortChainRows && Codes::kWords > 1 ? 2 : 1;
    constexpr int kTogether = Codes::Lines::kInputs > kRoundedTogether ? Codes::Lines::kInputs : kRoundedTogether;
    const int8_t* line = reinterpret_cast<const int8_t*>(weight.codes) + panel * code_lines(weight) * kLineBytes;
    const uint8_t* ahead = weight.codes + then * code_lines(weight) * kLineBytes;
    Groups scales(weight, weight.scales, weight.outer_scales, inputs, panel, then - panel);
    const bool has_minima = weight.minima != nullptr;
    Groups minima(weight, has_minima ? weight.minima : weight.scales, has_minima ? weight.outer_minima : weight.outer_scales,
                  inputs, panel, then - panel);
    Vec y[R][kVectors];
    const uint8_t* zeros = weight.zeros ? weight.zeros + panel * groups_of(weight) * kPanel : nullptr;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) y[r][v] = splat(0.0f);
    const int32_t *words = x.words, *starts = x.starts, *row_sums = x.sums;
    const float* row_scales = x.scales;
    long of_group = inputs.parts_per_group();
    for (long left = inputs.total(); left > 0; left -= inputs.size()) {
        Total totals[R][kVectors];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) totals[r][v] = Groups::begin();
        const Groups first_minima = minima;
        const int32_t* const block_sums = row_sums;
        int parts = 0;
        for (long rest = left < inputs.size() ? left : inputs.size(); rest > 0; rest -= inputs.part_size()) {
            Sums sums[kChains][R][kVectors];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) {
                    sums[0][r][v] = splat_integer(starts[r]);
                    if (kChains > 1) sums[kChains - 1][r][v] = splat_integer(0);
                }
            long steps = (rest < inputs.part_size() ? rest : inputs.part_size()) / kTogether;
            do {
#pragma GCC unroll 4
                for (int i = 0; i < kTogether; i += Codes::Lines::kInputs) {
#pragma GCC unroll 8
                    for (int l = 0; l < Codes::Lines::kCount; ++l) prefetch(ahead + l * kLineBytes);
                    for_constants<Codes::kWords>([&](auto word) {
                        Quads codes[kVectors];
#pragma GCC unroll 4
                        for (int v = 0; v < kVectors; ++v) codes[v] = kind.template word<word.value>(line + v * kLanes * 4);
#pragma GCC unroll 16
                        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                            for (int v = 0; v < kVectors; ++v)
                                sums[word.value % kChains][r][v] = Codes::accumulate(
                                    sums[word.value % kChains][r][v], words[word.value * R + r], codes[v]);
                    });
                    words += Codes::kWords * R;
                    line += Codes::Lines::kCount * kLineBytes;
                    ahead += Codes::Lines::kCount * kLineBytes;
                }
            } while (--steps > 0);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                if (kChains > 1)
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) sums[0][r][v] = add_integers(sums[0][r][v], sums[kChains - 1][r][v]);
                if (zeros) {
                    const Sums zero = widen_to_integers(zeros + v * kLanes);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r)
                        sums[0][r][v] = subtract_integers(sums[0][r][v], multiply_integers(zero, splat_integer(row_sums[r])));
                }
                const auto scale = scales.of_group(v * kLanes);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) totals[r][v] = Groups::add_sums(totals[r][v], sums[0][r][v], scale);
            }
            starts += R;
            row_sums += R;
            ++parts;
            if (--of_group > 0) continue;
            of_group = inputs.parts_per_group();
            scales.end_group();
            minima.end_group();
            if (zeros) zeros += kPanel;
        }
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            Vec block[R];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) block[r] = scales.end(totals[r][v], v * kLanes);
            if (has_minima) first_minima.add_minima(block_sums, parts, v * kLanes, block);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) y[r][v] = fused_multiply_add(block[r], splat(row_scales[r]), y[r][v]);
        }
        row_scales += R;
        scales.end_block();
        minima.end_block();
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) store(results + r * kTileOutputs + v * kLanes, y[r][v]);
}

// The integers of a weight's codes: the code, or its number in the table, plus `first`; all times `unit`.
class IntegerCodes {
public:
    explicit IntegerCodes(const RinglineQuantizedWeight& weight)
        : bits_(weight.bits), first_(static_cast<int32_t>(weight.codebook[0])) {
        if (bits_ == 8) first_ += kByteOffset;
        if (bits_ > 4) return;
        float least = weight.codebook[0];
        for (int code = 0; code < kCodes; ++code) {
            const float number = weight.codebook[code];
            has_table_ |= number != weight.codebook[0] + code;
            if (number != static_cast<int32_t>(number)) unit_ = 0.5f;  // FP4
            least = number < least ? number : least;
        }
        if (!has_table_) return;
        first_ = static_cast<int32_t>(least / unit_);
        for (int code = 0; code < kCodes; ++code)
            table_[code] = static_cast<uint8_t>(static_cast<int32_t>(weight.codebook[code] / unit_) - first_);
    }

    int bits() const { return bits_; }
    int32_t first() const { return first_; }
    float unit() const { return unit_; }

    // visit(how to unpack codes).
    template <class Visit>
    void with_kind(const Visit& visit) const {
        switch (bits_) {
            case 4: return has_table_ ? visit(TableNibbles(load_table(table_))) : visit(Nibbles{});
            case 5: return visit(SplitNibbles<5>{});
            case 6: return visit(SplitNibbles<6>{});
            default: return visit(ByteCodes{});
        }
    }

private:
    static constexpr int kCodes = 16;

    const int bits_;
    int32_t first_;
    float unit_ = 1.0f;
    bool has_table_ = false;
    uint8_t table_[kCodes] = {};
};

// Computes units of rows by a weight, or by several that follow each other. A tile is named by its first panel.
class CodeProducts {
public:
    using Tile = long;

    // With memory for `rows` rows.
    CodeProducts(const RinglineQuantizedWeight& weight, long rows)
        : weight_(weight),
          inputs_(weight.in_features, weight.group_size, weight.outer_size),
          codes_(weight),
          rows_(rows, inputs_, codes_.bits(), codes_.first(), codes_.unit(), weight.outer_minima != nullptr) {}

    bool failed() const { return rows_.failed(); }
    Tile tile(long number) const { return number * kTilePanels; }

    // Round one block's rows of the unit that begins at row `first`; input(row): K numbers.
    template <class F, class Input>
    void round(long first, const CodeBlocks& blocks, long block, const Input& input) const {
        rows_.template round<F>(first + blocks.start(block), blocks.size(block), input);
    }

    // A unit's results [rows, kTileOutputs]; reads the following tile ahead.
    template <class AnyUnit>
    void compute(const AnyUnit& unit, Tile following, float* results) const {
        const CodeBlocks blocks(unit.rows);
        codes_.with_kind([&](const auto& kind) {
            using Kind = std::decay_t<decltype(kind)>;
            for (long block = 0; block < blocks.count; ++block) {
                const long read = block == 0 ? following : unit.tile;
                const RowsOfBlock x = rows_.block(unit.first + blocks.start(block));
                float* const to = results + blocks.start(block) * kTileOutputs;
                with_constant<kCodeRows>(blocks.size(block), [&](auto rows) {
                    const auto multiply = weight_.outer_size ? multiply_panel<rows.value, BytesOfGroups, Kind>
                                                             : multiply_panel<rows.value, NumbersOfGroups, Kind>;
                    for (long p = 0; p < kTilePanels; ++p)
                        multiply(kind, weight_, unit.tile + p, x, inputs_, read + p, to + p * kPanel);
                });
            }
        });
    }

private:
    const RinglineQuantizedWeight& weight_;
    const InputBlocks inputs_;
    const IntegerCodes codes_;
    const CodeRows rows_;
};

}  // namespace
