// y = x · Wᵀ + b with a weight of integer codes and rows that are rounded to bytes, block of inputs by block.
//
// The sums of a block are exact integers below 2²⁴. They are scaled into one chain per output, blocks ascending: so a row's
// result has the same bits whatever the other rows, the threads and the instruction set.
#pragma once

#include "linear.h"
#include "quantized_int8_rows.h"
#include "quantized_pack.h"

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

// Numbers of a panel's groups, one group after the other: in a type of their own, or bytes times outer ones.
class PanelNumbers {
public:
    PanelNumbers(const RinglineQuantizedWeight& weight, const void* own, const void* outer, long panel)
        : type_(weight.scale_type), each_(outer ? weight.outer_size / weight.group_size : 0), left_(each_) {
        const long bytes = type_ == kRinglineFloat32 ? sizeof(float) : sizeof(uint16_t);
        step_ = (outer ? 1 : bytes) * kPanel;
        outer_step_ = bytes * kPanel;
        own_ = static_cast<const char*>(own) + panel * groups_of(weight) * step_;
        outer_ = static_cast<const char*>(outer) + panel * outer_groups_of(weight) * outer_step_;
    }

    // Those of the outputs from `lane` on.
    Vec operator[](int lane) const {
        if (!each_) return of_type(own_, lane);
        return multiply(of_type(outer_, lane), widen_bytes(reinterpret_cast<const int8_t*>(own_) + lane));
    }

    void advance() {
        own_ += step_;
        if (!each_ || --left_ > 0) return;
        outer_ += outer_step_;
        left_ = each_;
    }

private:
    Vec of_type(const char* numbers, int lane) const {
        switch (type_) {
            case kRinglineFloat32: return load(reinterpret_cast<const float*>(numbers) + lane);
            case kRinglineFloat16: return load_float16(reinterpret_cast<const uint16_t*>(numbers) + lane);
            default: return load_bfloat16(reinterpret_cast<const uint16_t*>(numbers) + lane);
        }
    }

    const int32_t type_;
    const long each_;  // groups of an outer one
    long left_, step_, outer_step_;
    const char *own_, *outer_;
};

// Results of R rows, kTileOutputs apart, with a panel; meanwhile as much is read `ahead`.
template <int R, class Codes>
void multiply_panel(const Codes& kind, const RinglineQuantizedWeight& weight, long panel, const RowsOfBlock& x,
                    const InputBlocks& inputs, const uint8_t* ahead, float* results) {
    constexpr int kVectors = kPanel / kLanes;
    constexpr int kChains = R <= kShortChainRows ? Codes::kWords : 1;
    const int8_t* line = reinterpret_cast<const int8_t*>(weight.codes) + panel * code_lines(weight) * kLineBytes;
    PanelNumbers scales(weight, weight.scales, weight.outer_scales, panel);
    PanelNumbers minima(weight, weight.minima, weight.outer_minima, panel);
    const uint8_t* zeros = weight.zeros ? weight.zeros + panel * groups_of(weight) * kPanel : nullptr;
    const bool has_minima = weight.minima != nullptr;
    Vec y[R][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) y[r][v] = splat(0.0f);
    const int32_t* words = x.words;
    const int32_t* starts = x.starts;
    const float *row_scales = x.scales, *row_sums = x.sums;
    long of_group = inputs.per_group();
    for (long left = inputs.total(); left > 0; left -= inputs.size()) {
        Sums sums[kChains][R][kVectors];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) {
                sums[0][r][v] = splat_integer(starts[r]);
                if (kChains > 1) sums[kChains - 1][r][v] = splat_integer(0);
            }
        long lines = (left < inputs.size() ? left : inputs.size()) / (4 * Codes::kWords);
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
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            Vec products[R];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                products[r] = to_floats(kChains > 1 ? add_integers(sums[0][r][v], sums[kChains - 1][r][v]) : sums[0][r][v]);
            if (zeros) {
                // Exact, like all integers below 2²⁴.
                const Vec negated = subtract(splat(0.0f), widen_bytes(zeros + v * kLanes));
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) products[r] = multiply_add(negated, splat(row_sums[r]), products[r]);
            }
            const Vec scale = scales[v * kLanes];
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r)
                y[r][v] = fused_multiply_add(multiply(products[r], splat(row_scales[r])), scale, y[r][v]);
            if (has_minima) {
                const Vec minimum = minima[v * kLanes];
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) y[r][v] = fused_multiply_add(splat(row_sums[r]), minimum, y[r][v]);
            }
        }
        starts += R;
        row_scales += R;
        row_sums += R;
        if (--of_group > 0) continue;
        of_group = inputs.per_group();
        scales.advance();
        if (has_minima) minima.advance();
        if (zeros) zeros += kPanel;
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

// Computes units of rows of a weight, or of several that follow each other. A tile is named by its first panel.
class CodeProducts {
public:
    using Tile = long;

    // With room for `rows` in all.
    CodeProducts(const RinglineQuantizedWeight& weight, long rows)
        : weight_(weight),
          inputs_(weight.in_features, weight.group_size),
          codes_(weight),
          rows_(rows, inputs_, codes_.bits(), codes_.first(), codes_.unit(), weight.minima != nullptr) {}

    bool failed() const { return rows_.failed(); }
    Tile tile(long number) const { return number * kTilePanels; }

    // Round the rows of a unit that begins with row `first`, or those of one of its blocks; input(row): K numbers.
    template <class F, class Input>
    void round(long first, const CodeBlocks& blocks, long block, const Input& input) const {
        rows_.template round<F>(first + blocks.start(block), blocks.size(block), input);
    }

    // Results [rows, kTileOutputs] of a unit; meanwhile the tile that follows is read ahead.
    template <class AnyUnit>
    void compute(const AnyUnit& unit, Tile following, float* results) const {
        const CodeBlocks blocks(unit.rows);
        codes_.with_kind([&](const auto& kind) {
            for (long block = 0; block < blocks.count; ++block) {
                const long read = block == 0 ? following : unit.tile;
                const RowsOfBlock x = rows_.block(unit.first + blocks.start(block));
                float* const to = results + blocks.start(block) * kTileOutputs;
                with_constant<kCodeRows>(blocks.size(block), [&](auto rows) {
                    for (long p = 0; p < kTilePanels; ++p)
                        multiply_panel<rows.value>(kind, weight_, unit.tile + p, x, inputs_, codes_of(read + p), to + p * kPanel);
                });
            }
        });
    }

private:
    const uint8_t* codes_of(long panel) const { return weight_.codes + panel * code_lines(weight_) * kLineBytes; }

    const RinglineQuantizedWeight& weight_;
    const InputBlocks inputs_;
    const IntegerCodes codes_;
    const CodeRows rows_;
};

}  // namespace
