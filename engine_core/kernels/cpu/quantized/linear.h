// y = x · Wᵀ + b with a weight that stays quantized, and inputs in the model's type.
//
// Panels, tiles and units of work are those of linear/linear.h. For each group of inputs, in ascending order, a chain of
// additions from 0 sums x · codebook[code], less the zero times the sum of the inputs; that times the scale is added to the
// result, and the minimum times the sum of the inputs.
//
// If it costs little, or with few rows, codes are looked up in registers just before multiplying. Else a part of a tile is
// looked up once for all rows, to memory in the cache: the same operations, and so the same bits.
#pragma once

#include "linear/argmax.h"
#include "quantized/codes.h"
#include "quantized/groups.h"

namespace {

// The number type of factors and of looked-up codes.
template <class F>
struct DecodedOf {
    using Type = Float32;
};
#ifdef __AVX512BF16__
template <>
struct DecodedOf<BFloat16> {
    using Type = BFloat16;
};
#endif

constexpr long kDecodedBytes = 64 << 10;  // of a part of a tile; some of it stays in the L1 cache

// Computes units of rows of factors, `stride` apart. A tile is named by its first panel.
template <class D, class Codes>
class QuantizedTileProducts {
    using Factor = typename D::Factor;
    static constexpr int kVectors = kPanel / kLanes;
    // Rows per block with decoded codes: registers hold both a group's sums and the results.
    static constexpr int kDecodedRows = kLanes == 16 ? kBlockRows / 2 : kBlockRows;
    static constexpr long kElementBytes = sizeof(typename D::Element);
    static constexpr int kLines = Codes::Lines::kCount;  // of a block of codes
    static constexpr long kBlockBytes = kLines * kLineBytes;
    static constexpr long kMostPart = kDecodedBytes / (kTileOutputs * kElementBytes);  // inputs

public:
    using Tile = long;

    QuantizedTileProducts(const RinglineQuantizedWeight& weight, const Factor* x, long stride, long rows, int threads)
        : codes_(weight.codebook),
          groups_(weight),
          sums_(weight, x, stride, rows, threads),
          lines_(weight.codes),
          inputs_(weight.in_features),
          stride_(stride),
          panel_(code_lines(weight) * kLineBytes),
          part_(part_of(weight.group_size)) {}

    // Of a linear layer.
    template <class Rows>
    QuantizedTileProducts(const RinglineLinear& args, const Rows& rows, int threads)
        : QuantizedTileProducts(weight_of(args), rows.row(0), rows.stride(), args.rows, threads) {}
    static const int32_t* input_order(const RinglineLinear& args) { return weight_of(args).input_order; }
    Tile tile(long number) const { return number * kTilePanels; }

    bool failed() const { return sums_.failed(); }

    // A unit's results [rows, kTileOutputs]; reads the following tile ahead.
    template <class AnyUnit>
    void compute(const AnyUnit& unit, Tile following, float* sums) const {
        compute_rows(unit.tile, unit.x, unit.first, unit.rows, following, sums);
    }

private:
    struct Part {
        long first, end;  // inputs
        long first_group, groups;
    };
    struct Sums {
        float* results;  // [rows, kTileOutputs]
        float* open;     // likewise, of groups that end in a later part
        long row;        // the first row's number
    };

    // The same for `rows` rows from x on, numbered from `row`: compiled once for all types of units.
    void compute_rows(Tile tile, const Factor* x, long row, long rows, Tile following, float* sums) const {
        GroupNumbers numbers;
        alignas(kCacheLine) char decoded[kDecodedBytes];
        alignas(kCacheLine) float open[kMostUnitRows * kTileOutputs];
        for (long i = 0; i < rows * kTileOutputs; i += kLanes) store(sums + i, splat(0.0f));
        for (long first = 0; first < inputs_; first += part_) {
            const Part part = part_at(first);
            const bool last = part.end == inputs_;
            const Part then = part_at(last ? 0 : part.end);
            const Tile next = last ? following : tile;
            groups_.read(tile, part.first_group, part.groups, numbers);
            groups_.prefetch_groups(next, then.first_group, then.groups);
            const uint8_t* const ahead = lines(next, then.first);
            if (rows <= codes_.few_rows()) {
                for_blocks<kBlockRows>(rows, [&](auto count, long block, long, long start) {
                    const InRegisters source{*this, lines(tile, first), block == 0 ? ahead : lines(tile, first)};
                    const long offset = start * kTileOutputs;
                    add_part<count.value>(part, source, numbers, x + start * stride_, {sums + offset, open + offset, row + start});
                });
                continue;
            }
            decode(part, lines(tile, first), decoded);
            for_blocks<kDecodedRows>(rows, [&](auto count, long block, long blocks, long start) {
                const InMemory source{decoded, ahead, panel_, block, blocks};
                const long offset = start * kTileOutputs;
                add_part<count.value>(part, source, numbers, x + start * stride_, {sums + offset, open + offset, row + start});
            });
        }
    }

    // f(a block's rows, its number, the number of blocks, its first row) for blocks of at most `Most` rows.
    template <int Most, class F>
    static void for_blocks(long rows, const F& f) {
        const RowBlocks blocks(rows, Most);
        for (long block = 0; block < blocks.count; ++block)
            with_constant<Most>(blocks.size(block), [&](auto count) { f(count, block, blocks.count, blocks.start(block)); });
    }

    static const RinglineQuantizedWeight& weight_of(const RinglineLinear& args) {
        return *static_cast<const RinglineQuantizedWeight*>(args.weight);
    }

    // A part is some whole groups, or a part of one.
    static long part_of(long group_size) { return group_size < kMostPart ? kMostPart / group_size * group_size : kMostPart; }

    Part part_at(long first) const {
        const long end = first + part_ < inputs_ ? first + part_ : inputs_, group = first / groups_.size();
        return {first, end, group, (end - 1) / groups_.size() + 1 - group};
    }

    const uint8_t* lines(Tile tile, long input) const {
        return lines_ + tile * panel_ + input / Codes::kInputs * kBlockBytes;
    }

    // Offset of a vector of outputs in a tile's lines.
    long place(int vector) const { return vector / kVectors * panel_ + vector % kVectors * kLanes * 4; }

    // A part's codes, looked up while they are multiplied. Reads as much memory ahead.
    struct InRegisters {
        const QuantizedTileProducts& products;
        const uint8_t* lines;
        const uint8_t* ahead;

        template <int Rows, int kColumns>
        inline __attribute__((always_inline)) void add_products(
            Block<D, Rows, kColumns>& block, const Factor* x, long stride, int vector, const Part&, long from, long count) const {
            const Codes codes = products.codes_;
            const long first = from / Codes::kInputs, end = (from + count) / Codes::kInputs;
            for (long number = first; number < end; ++number) {
                typename Codes::Loaded codes_of[kColumns];
#pragma GCC unroll 8
                for (int c = 0; c < kColumns; ++c) {
                    const long at = products.place(vector + c) + number * kBlockBytes;
                    codes_of[c] = Codes::Loaded::load(lines + at);
                    if ((vector + c) % kVectors != 0) continue;
#pragma GCC unroll 8
                    for (int line = 0; line < kLines; ++line) prefetch(ahead + at + line * kLineBytes);
                }
                for_constants<Codes::kSteps>([&](auto step) {
                    typename D::Column columns[kColumns];
#pragma GCC unroll 8
                    for (int c = 0; c < kColumns; ++c) columns[c] = codes.template column<step.value>(codes_of[c]);
                    block.add_step(x + number * Codes::kInputs + step.value * D::kPack, stride, columns);
                });
            }
        }
    };

    // Look up a part's codes, in the layout of linear/linear.h's panels: [kTilePanels, inputs of the part, kPanel].
    void decode(const Part& part, const uint8_t* lines, char* decoded) const {
        const Codes codes = codes_;
        const long inputs = part.end - part.first;
        for (int vector = 0; vector < kTileOutputs / kLanes; ++vector)
            for (long number = 0; number < inputs / Codes::kInputs; ++number) {
                const auto loaded = Codes::Loaded::load(lines + place(vector) + number * kBlockBytes);
                for_constants<Codes::kSteps>([&](auto step) {
                    const auto column = codes.template column<step.value>(loaded);
                    std::memcpy(decoded + decoded_place(part, vector, number * Codes::kSteps + step.value), &column, sizeof column);
                });
            }
    }
    static long decoded_place(const Part& part, int vector, long step) {
        const long inputs = part.end - part.first, panel = vector / kVectors, column = vector % kVectors * kLanes;
        return ((panel * inputs + step * D::kPack) * kPanel + column * D::kPack) * kElementBytes;
    }

    // The same codes, already looked up to memory. The first blocks of rows read ahead, in equal shares of panels.
    struct InMemory {
        const char* decoded;
        const uint8_t* ahead;
        const long panel, block, blocks;

        template <int Rows, int kColumns>
        inline __attribute__((always_inline)) void add_products(
            Block<D, Rows, kColumns>& sums, const Factor* x, long stride, int vector, const Part& part, long from,
            long count) const {
            constexpr long kInputs = kPanel;  // at a time
            constexpr long kBytes = kInputs * kBlockBytes / Codes::kInputs;
            const long sharing = blocks < kTilePanels ? blocks : kTilePanels;
            const long first = vector == 0 && block < sharing ? kTilePanels * block / sharing : 0;
            const long end = vector == 0 && block < sharing ? kTilePanels * (block + 1) / sharing : 0;
            for (long input = from; input < from + count; input += kInputs) {
                for (long i = first; i < end; ++i)
                    for (long byte = 0; byte < kBytes; byte += kLineBytes)
                        prefetch(ahead + i * panel + input / kInputs * kBytes + byte);
                const typename D::Element* columns[kColumns];
#pragma GCC unroll 8
                for (int c = 0; c < kColumns; ++c)
                    columns[c] = reinterpret_cast<const typename D::Element*>(
                        decoded + decoded_place(part, vector + c, input / D::kPack));
                sums.template add_products<false>(x + input, stride, columns, columns, kPanel * D::kPack, kInputs / D::kPack);
            }
        }
    };

    // Add a part of the inputs to the results of a block of rows. Registers hold both a group's sums and the results, so
    // with many rows half as many outputs are computed at a time.
    template <int Rows, class Source>
    void add_part(const Part& part, const Source& source, const GroupNumbers& numbers, const Factor* x, const Sums& to) const {
        constexpr int kColumns = kLanes == 16 && Rows > kBlockRows / 2 ? kBlockColumns / 2 : kBlockColumns;
        const long stride = stride_, size = groups_.size(), inputs = inputs_, count = part.groups;
        for (int vector = 0; vector < kTileOutputs / kLanes; vector += kColumns) {
            Block<D, Rows, kColumns> block, results;
            float* const open = to.open + vector * kLanes;
            results.load_from(to.results + vector * kLanes, kTileOutputs);
            if (part.first > part.first_group * size) block.load_from(open, kTileOutputs);
            long from = part.first, end = (part.first_group + 1) * size;
            for (long g = 0; g < count; ++g, end += size) {
                const long until = end < part.end ? end : part.end;
                if (from == end - size) block.clear();
                source.template add_products<Rows, kColumns>(
                    block, x + part.first, stride, vector, part, from - part.first, until - from);
                if (until < end && until < inputs)
                    block.store_to(open, kTileOutputs);
                else
                    add_group(block, part.first_group + g, numbers, g * kTileOutputs + vector * kLanes, to.row, results);
                from = until;
            }
            results.store_to(to.results + vector * kLanes, kTileOutputs);
        }
    }

    // Add a group's sums to the results. `at`: offset of its numbers.
    template <int Rows, int kColumns>
    inline __attribute__((always_inline)) void add_group(
        const Block<D, Rows, kColumns>& block, long group, const GroupNumbers& numbers, long at, long row,
        Block<D, Rows, kColumns>& results) const {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            const Vec input_sum = groups_.has_zeros() || groups_.has_minima() ? splat(sums_.of(row + r)[group]) : splat(0.0f);
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) {
                const long from = at + c * kLanes;
                Vec sum = block.sums[r][c];
                if (groups_.has_zeros()) sum = multiply_add(input_sum, load(numbers.negated_zeros + from), sum);
                Vec& result = results.sums[r][c];
                result = multiply_add(sum, load(numbers.scales + from), result);
                if (groups_.has_minima()) result = multiply_add(input_sum, load(numbers.minima + from), result);
            }
        }
    }

    const Codes codes_;
    const PackedGroups groups_;
    const InputSums<D> sums_;
    const uint8_t* const lines_;
    const long inputs_, stride_;
    const long panel_;  // bytes
    const long part_;   // inputs per part
};

template <class T>
struct Named {
    using Type = T;
};

// f(the number type, its products with codes of the weight's bits).
template <class F>
int with_quantized_products(const RinglineLinear& args, const F& f) {
    return with_number_type(args.number_type, [&](auto number) {
        using D = typename DecodedOf<decltype(number)>::Type;
        return with_bits(static_cast<const RinglineQuantizedWeight*>(args.weight)->bits, [&](auto bits) {
            return f(number, Named<QuantizedTileProducts<D, Codes<D, bits.value>>>{});
        });
    });
}

inline int quantized_linear(const RinglineLinear& args) {
    return with_quantized_products(args, [&](auto number, auto products) {
        return written_linear<decltype(number), typename decltype(products)::Type>(args);
    });
}

inline int quantized_argmax(const RinglineLinear& args) {
    return with_quantized_products(args, [&](auto number, auto products) {
        return greatest_of_linear<decltype(number), typename decltype(products)::Type>(args);
    });
}

}  // namespace
