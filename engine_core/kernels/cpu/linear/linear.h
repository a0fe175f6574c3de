// Multiplies rows by a packed weight.
//
// A weight W [N, K] is packed in *panels* of 16 outputs: [N / 16][K / P][16][P], where P numbers are packed (2 for bfloat16,
// else 1), so that a vector holds the same inputs' weights of neighbouring outputs. Four panels are a *tile*, and N is
// padded to whole tiles. A tile is computed for all rows while it is in the cache, one part of its inputs after another;
// meanwhile the next part is read ahead. As many outputs at a time as registers hold are computed for all of the rows, so
// that their weights of a part stay in the L1 cache.
//
// Every result is one chain of additions over the inputs in ascending order: neither other rows nor threads
// affect its bits.
#pragma once

#include "linear/blocks.h"
#include "interface.h"
#include "threads/memory.h"
#include "threads/team.h"

namespace {

constexpr int kPanel = 16;
constexpr int kTilePanels = 4;
constexpr int kTileOutputs = kPanel * kTilePanels;
constexpr int kMostUnitRows = 16 * kPlainBlockRows;
constexpr long kBatchBytes = 4 << 20;  // of tiles that meet all rows before the next ones do
// With few rows, reading the weights takes as long as multiplying them by kRowsPerRead rows.
constexpr long kProductsPerNanosecond = 100, kRowsPerRead = 8;
constexpr long kConvertedPerNanosecond = 4;

// Divides rows into blocks of nearly equal size, at most `most` rows.
struct RowBlocks {
    long rows, count;

    explicit RowBlocks(long rows, long most = kBlockRows) : rows(rows), count((rows + most - 1) / most) {}
    long start(long block) const { return rows * block / count; }
    int size(long block) const { return static_cast<int>(start(block + 1) - start(block)); }
};

// Memory to read ahead while a block of rows is computed: so many lines of each panel, every few inputs.
struct ReadAhead {
    const char* at;
    int lines;
};

// A unit of work: neighbouring rows, at most kMostUnitRows, by a tile of outputs.
template <class F, class Tile = const typename F::Element*>
struct Unit {
    Tile tile;
    const typename F::Factor* x;  // the first row
    long first, rows;             // numbers of the rows
    long output;                  // the tile's first output
    long group;                   // index of the tile's weight, if several
};

// The number of groups of at most kMostUnitRows rows, and each one's start.
inline long row_groups(long rows) { return (rows + kMostUnitRows - 1) / kMostUnitRows; }
inline long group_start(long rows, long group) { return rows * group / row_groups(rows); }

// Rows as factors: in place, or converted, or with inputs in an `order` [width].
template <class F>
class FactorRows {
    using Element = typename F::Element;
    using Factor = typename F::Factor;
    static constexpr bool kConverted = sizeof(Factor) != sizeof(Element);

public:
    FactorRows(const void* x, long rows, long width, long stride, int threads, const int32_t* order = nullptr)
        : copied_(kConverted || order),
          buffer_(copied_ ? rows * width * static_cast<long>(sizeof(Factor)) : 1),
          stride_(copied_ ? width : stride),
          first_(static_cast<const Factor*>(x)) {
        if (!copied_ || buffer_.failed()) return;
        Factor* const to = reinterpret_cast<Factor*>(buffer_.at(0));
        first_ = to;
        parallel_for(threads_worth(rows * width / kConvertedPerNanosecond, threads), rows, 1, [&](long row) {
            const Element* const from = static_cast<const Element*>(x) + row * stride;
            if (!order) return F::load_factors(to + row * width, from, width);
            for (long i = 0; i < width; i += kPanel) {
                Element ordered[kPanel];
                for (int j = 0; j < kPanel; ++j) ordered[j] = from[order[i + j]];
                F::load_factors(to + row * width + i, ordered, kPanel);
            }
        });
    }

    bool failed() const { return buffer_.failed(); }
    long stride() const { return stride_; }
    const Factor* row(long row) const { return first_ + row * stride_; }

private:
    const bool copied_;
    const Buffer buffer_;
    const long stride_;
    const Factor* first_;
};

// Computes units of rows of `inputs` factors, `stride` apart.
template <class F>
class TileProducts {
    using Element = typename F::Element;
    using Factor = typename F::Factor;

public:
    using Tile = const Element*;

    TileProducts(const void* weight, long inputs, long stride)
        : weight_(static_cast<Tile>(weight)),
          inputs_(inputs),
          stride_(stride),
          panel_(inputs * kPanel),
          part_(equal_parts(inputs)) {}

    TileProducts(const RinglineLinear& args, const FactorRows<F>& rows, int)
        : TileProducts(args.weight, args.in_features, rows.stride()) {}
    static const int32_t* input_order(const RinglineLinear&) { return nullptr; }

    bool failed() const { return false; }
    Tile tile(long number) const { return weight_ + number * kTilePanels * panel_; }

    // A unit's results [rows, kTileOutputs]; reads the following tile ahead.
    void compute(const Unit<F>& unit, const Element* following, float* sums) const {
        if (unit.rows == 1)
            compute_parts<1, kRowColumns>(unit, following, sums);
        else
            compute_parts<kMostRows, kBlockColumns>(unit, following, sums);
    }

private:
    static constexpr int kMostRows = F::kPack == 1 ? kPlainBlockRows : kBlockRows;
    static constexpr int kTileVectors = kTileOutputs / kLanes, kPanelVectors = kPanel / kLanes;
    // One row leaves registers for the sums of more outputs.
    static constexpr int kRowColumns = kMostRows * kBlockColumns < kTileVectors ? kBlockColumns : kTileVectors;
    // Inputs between which memory is read ahead, and the lines of a panel that hold their weights.
    static constexpr long kInputs = kAheadSteps * F::kPack < kPanel ? kAheadSteps * F::kPack : kPanel;
    static constexpr long kLines = kInputs * kPanel * static_cast<long>(sizeof(Element)) / kCacheLine;

    // Inputs per part: parts of at most kPartBytes and of nearly equal size, since a short one gains less from the cache.
    static long equal_parts(long inputs) {
        constexpr long kMost = kPartBytes / (kTileOutputs * static_cast<long>(sizeof(Element)));
        const long count = (inputs + kMost - 1) / kMost, equal = (inputs + count - 1) / count;
        return (equal + kInputs - 1) / kInputs * kInputs;
    }

    template <int kRows, int kColumns>
    void compute_parts(const Unit<F>& unit, const Element* following, float* sums) const {
        const RowBlocks blocks(unit.rows, kRows);
        for (long input = 0; input < inputs_; input += part_) {
            const long inputs = inputs_ - input < part_ ? inputs_ - input : part_;
            const Element* const ahead = input + inputs == inputs_ ? following : unit.tile + (input + inputs) * kPanel;
            for (int vector = 0; vector < kTileVectors; vector += kColumns)
                for (long block = 0; block < blocks.count; ++block)
                    with_constant<kRows>(blocks.size(block), [&](auto rows) {
                        const long start = blocks.start(block);
                        add_part<rows.value, kColumns>(unit.x + start * stride_ + input, at_vector(unit.tile + input * kPanel, vector),
                                                       inputs, share_of(block, blocks.count, inputs, at_vector(ahead, vector)),
                                                       input == 0, sums + start * kTileOutputs + vector * kLanes);
                    });
        }
    }

    const Element* at_vector(const Element* weight, int vector) const {
        return weight + vector / kPanelVectors * panel_ + vector % kPanelVectors * kLanes * F::kPack;
    }

    // What a block of rows reads ahead of `inputs` inputs' weights: the first blocks, equal shares.
    ReadAhead share_of(long block, long count, long inputs, const Element* ahead) const {
        const long times = inputs / kInputs, lines = (kLines + count - 1) / count, first = block * lines * times;
        if (first >= kLines * times) return {nullptr, 0};
        return {reinterpret_cast<const char*>(ahead) + first * kCacheLine, static_cast<int>(lines)};
    }

    // Add a part of the inputs to the results of a block of rows. (A function of its own: within others, the compiler keeps
    // addresses in memory that registers could hold.)
    template <int Rows, int kColumns>
    __attribute__((noinline)) void add_part(
        const Factor* x, const Element* weight, long inputs, ReadAhead ahead, bool first, float* sums) const {
        constexpr int kPanels = (kColumns + kPanelVectors - 1) / kPanelVectors;
        const long panel = panel_, stride = stride_;
        Block<F, Rows, kColumns> block;
        if (first)
            block.clear();
        else
            block.load_from(sums, kTileOutputs);
        for (const Factor* const end = x + inputs; x < end; x += kInputs, weight += kInputs * kPanel) {
            for (int line = 0; line < ahead.lines; ++line, ahead.at += kCacheLine)
#pragma GCC unroll 8
                for (int i = 0; i < kPanels; ++i) prefetch(ahead.at + i * panel * static_cast<long>(sizeof(Element)));
#pragma GCC unroll 4  // more, and addresses no longer fit into registers
            for (int step = 0; step < kInputs / F::kPack; ++step) {
                typename F::Column columns[kColumns];
#pragma GCC unroll 8
                for (int c = 0; c < kColumns; ++c)
                    columns[c] = F::column(weight + c / kPanelVectors * panel + (step * kPanel + c % kPanelVectors * kLanes) * F::kPack);
                block.add_step(x + step * F::kPack, stride, columns);
            }
        }
        block.store_to(sums, kTileOutputs);
    }

    const Tile weight_;
    const long inputs_, stride_;
    const long panel_;  // elements of a panel
    const long part_;   // inputs per part
};

// Compute all units of `work` on some threads. Work has units(), unit(i), and take(thread, unit, row, sums), called for
// each row of a unit; after_all(unit) is the tile to read ahead if no unit follows.
template <class Products, class Work>
void multiply_tiles(const Products& products, int threads, const Work& work) {
    const long count = work.units();
    long next = 0;
    in_parallel(threads, [&](int thread) {
        alignas(kCacheLine) float sums[kMostUnitRows * kTileOutputs];
        long number = take(next);
        if (number >= count) return;
        for (auto unit = work.unit(number);;) {
            const long following = take(next);
            const auto then = following < count ? work.unit(following) : unit;
            products.compute(unit, following < count ? then.tile : work.after_all(unit), sums);
            for (long row = 0; row < unit.rows; ++row) work.take(thread, unit, unit.first + row, sums + row * kTileOutputs);
            if (following >= count) return;
            unit = then;
        }
    });
}

inline int threads_of_products(long rows, long products, int threads) {
    return threads_worth((rows < kRowsPerRead ? kRowsPerRead : rows) * products / kProductsPerNanosecond, threads);
}

// A layer whose results go to `Outputs`: take(thread, row, first, sums) receives the tile of outputs from `first` on.
template <class F, class Outputs, class Products = TileProducts<F>>
class Linear {
    using Tile = typename Products::Tile;
    using LinearUnit = Unit<F, Tile>;

public:
    Linear(const RinglineLinear& args, Outputs& outputs)
        : args_(args),
          outputs_(outputs),
          threads_(threads_of_products(args.rows, args.out_features * args.in_features, args.num_threads)),
          rows_(args.x, args.rows, args.in_features, args.in_features, threads_, Products::input_order(args)),
          products_(args, rows_, threads_),
          tiles_((args.out_features + kTileOutputs - 1) / kTileOutputs),
          groups_(row_groups(args.rows)),
          batch_(1 + kBatchBytes / (args.in_features * kTileOutputs * static_cast<long>(sizeof(typename F::Element)))) {}

    // Returns 0, or 1 when there is no memory.
    int run() {
        if (rows_.failed() || products_.failed()) return 1;
        multiply_tiles(products_, threads_, *this);
        return 0;
    }

    long units() const { return tiles_ * groups_; }
    LinearUnit unit(long number) const {
        const long before = number / (batch_ * groups_) * batch_, place = number - before * groups_;
        const long tiles = batch_ < tiles_ - before ? batch_ : tiles_ - before;
        const long tile = before + place % tiles, group = place / tiles, first = group_start(args_.rows, group);
        return {products_.tile(tile), rows_.row(first), first, group_start(args_.rows, group + 1) - first,
                tile * kTileOutputs, 0};
    }
    Tile after_all(const LinearUnit& unit) const { return unit.tile; }

    void take(int thread, const LinearUnit& unit, long row, float* sums) const {
        if (args_.bias)
            for (int i = 0; i < kTileOutputs; i += kLanes)
                store(sums + i, add(load(sums + i), load(args_.bias + unit.output + i)));
        outputs_.take(thread, row, unit.output, sums);
    }

private:
    const RinglineLinear& args_;
    Outputs& outputs_;
    const int threads_;
    const FactorRows<F> rows_;
    const Products products_;
    const long tiles_, groups_;  // of outputs, and of rows
    const long batch_;           // tiles
};

// Writes results as a matrix: times the scale, plus the residual.
template <class F>
class WrittenOutputs {
    using Element = typename F::Element;

public:
    explicit WrittenOutputs(const RinglineLinear& args) : args_(args) {}

    // Write a tile's outputs, without padding.
    void take(int, long row, long first, float* sums) const {
        const long left = args_.out_features - first;
        const long added = row * args_.residual_stride + first, at = row * args_.output_stride + first;
        if (left < kTileOutputs) return put_last(sums, added, at, left);
        for (int i = 0; i < kTileOutputs; i += kLanes) put_vector(sums + i, added + i, at + i);
    }

private:
    // `added`: offset of the residual; `at`: of the output.
    void put_vector(const float* sums, long added, long at) const {
        Vec v = multiply(load(sums), splat(args_.scale));
        if (args_.residual) v = add(v, F::widen(static_cast<const Element*>(args_.residual) + added));
        if (args_.wide)
            store(static_cast<float*>(args_.output) + at, v);
        else
            F::narrow(static_cast<Element*>(args_.output) + at, v);
    }

    void put_last(float* sums, long added, long at, long count) const {
        Element residual[kTileOutputs] = {}, narrow[kTileOutputs];
        if (args_.residual) std::memcpy(residual, static_cast<const Element*>(args_.residual) + added, count * sizeof(Element));
        for (int i = 0; i < kTileOutputs; i += kLanes) {
            const Vec v = multiply(load(sums + i), splat(args_.scale));
            store(sums + i, args_.residual ? add(v, F::widen(residual + i)) : v);
            F::narrow(narrow + i, load(sums + i));
        }
        if (args_.wide)
            std::memcpy(static_cast<float*>(args_.output) + at, sums, count * sizeof(float));
        else
            std::memcpy(static_cast<Element*>(args_.output) + at, narrow, count * sizeof(Element));
    }

    const RinglineLinear& args_;
};

template <class F, class Products = TileProducts<F>>
int written_linear(const RinglineLinear& args) {
    WrittenOutputs<F> outputs(args);
    return Linear<F, WrittenOutputs<F>, Products>(args, outputs).run();
}

inline int linear(const RinglineLinear& args) {
    return with_number_type(args.number_type, [&](auto number) { return written_linear<decltype(number)>(args); });
}

}  // namespace
