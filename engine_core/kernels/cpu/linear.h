// Products of rows by a packed weight.
//
// A weight W [N, K] is packed in *panels* of 16 outputs: [N / 16][K / P][16][P], where P numbers are packed (2 for bfloat16,
// else 1), so that a vector holds the same inputs' weights of neighbouring outputs. Four panels are a *tile*, and N is
// padded to whole tiles. A tile is computed for all rows while it is in the cache, a part of its inputs after the other;
// meanwhile the part that comes next is read ahead.
//
// Every result is one chain of additions over the inputs in ascending order: neither the other rows nor the threads
// decide a bit of it.
#pragma once

#include "blocks.h"
#include "interface.h"
#include "memory.h"
#include "team.h"

namespace {

constexpr int kPanel = 16;
constexpr int kTilePanels = 4;
constexpr int kTileOutputs = kPanel * kTilePanels;
constexpr long kPartBytes = 128 << 10;    // of a tile: two parts and some rows must fit into the L2 cache
constexpr int kMostUnitRows = 16 * kBlockRows;
// For few rows, reading the weights takes as long as multiplying them by kRowsPerRead rows.
constexpr long kProductsPerNanosecond = 100, kRowsPerRead = 8;
constexpr long kConvertedPerNanosecond = 4;

// Rows are divided into blocks of nearly equal size.
struct RowBlocks {
    long rows, count;

    explicit RowBlocks(long rows) : rows(rows), count((rows + kBlockRows - 1) / kBlockRows) {}
    long start(long block) const { return rows * block / count; }
    int size(long block) const { return static_cast<int>(start(block + 1) - start(block)); }
};

// Which memory is read ahead while one block of rows is computed: as much of some of the panels that come next as is
// computed now.
struct ReadAhead {
    const char* panels[kTilePanels];
    int count;
};

// Products whose results go to `Outputs`: take(thread, row, first, sums) is called for the tile of outputs from `first` on.
template <class F, class Outputs>
class Linear {
    using Element = typename F::Element;
    using Factor = typename F::Factor;

public:
    Linear(const RinglineLinear& args, Outputs& outputs)
        : args_(args),
          outputs_(outputs),
          tiles_((args.out_features + kTileOutputs - 1) / kTileOutputs),
          panel_(args.in_features * kPanel),
          part_(kPartBytes / (kTileOutputs * static_cast<long>(sizeof(Element)))),
          groups_((args.rows + kMostUnitRows - 1) / kMostUnitRows) {
        const long rows = args.rows < kRowsPerRead ? kRowsPerRead : args.rows;
        threads_ = threads_worth(rows * args.out_features * args.in_features / kProductsPerNanosecond, args.num_threads);
    }

    // Returns 0, or 1 when there is no memory.
    int run() {
        const bool convert = sizeof(Factor) != sizeof(Element);
        const Buffer converted(convert ? args_.rows * args_.in_features * static_cast<long>(sizeof(Factor)) : 1);
        if (converted.failed()) return 1;
        factors_ = convert ? reinterpret_cast<const Factor*>(converted.at(0)) : static_cast<const Factor*>(args_.x);
        if (convert) convert_rows(reinterpret_cast<Factor*>(converted.at(0)));
        long next = 0;
        in_parallel(threads_, [&](int thread) {
            long unit = take(next);
            while (unit < units()) {
                const long following = take(next);
                compute(thread, unit, following < units() ? following : unit);
                unit = following;
            }
        });
        return 0;
    }

private:
    // A unit of work is a tile of outputs for a group of rows.
    long units() const { return tiles_ * groups_; }

    void convert_rows(Factor* to) const {
        const int threads = threads_worth(args_.rows * args_.in_features / kConvertedPerNanosecond, threads_);
        parallel_for(threads, args_.rows, 1, [&](long row) {
            F::load_factors(to + row * args_.in_features, static_cast<const Element*>(args_.x) + row * args_.in_features,
                            args_.in_features);
        });
    }

    const Element* tile(long number) const {
        return static_cast<const Element*>(args_.weight) + number * kTilePanels * panel_;
    }

    void compute(int thread, long unit, long following) {
        const long group = unit % groups_;
        const long first = args_.rows * group / groups_, end = args_.rows * (group + 1) / groups_;
        const RowBlocks blocks(end - first);
        alignas(kCacheLine) float sums[kMostUnitRows * kTileOutputs];
        for (long i = 0; i < blocks.rows * kTileOutputs; i += kLanes) store(sums + i, splat(0.0f));
        for (long input = 0; input < args_.in_features; input += part_) {
            const long inputs = args_.in_features - input < part_ ? args_.in_features - input : part_;
            const bool last = input + inputs == args_.in_features;
            const Element* const ahead = last ? tile(following / groups_) : tile(unit / groups_) + (input + inputs) * kPanel;
            for (long block = 0; block < blocks.count; ++block)
                with_constant<kBlockRows>(blocks.size(block), [&](auto rows) {
                    add_products<rows.value>(
                        factors_ + (first + blocks.start(block)) * args_.in_features + input,
                        tile(unit / groups_) + input * kPanel, inputs, share_of(block, blocks.count, ahead),
                        sums + blocks.start(block) * kTileOutputs);
                });
        }
        for (long row = 0; row < blocks.rows; ++row) finish(thread, first + row, unit / groups_, sums + row * kTileOutputs);
    }

    // What the first blocks of rows read ahead, each an equal share.
    ReadAhead share_of(long block, long count, const Element* ahead) const {
        const long sharing = count < kTilePanels ? count : kTilePanels;
        const long first = block < sharing ? kTilePanels * block / sharing : 0;
        const long end = block < sharing ? kTilePanels * (block + 1) / sharing : 0;
        ReadAhead share{{}, static_cast<int>(end - first)};
        for (long i = first; i < end; ++i) share.panels[i - first] = reinterpret_cast<const char*>(ahead + i * panel_);
        return share;
    }

    template <int Rows>
    void add_products(const Factor* x, const Element* weight, long inputs, const ReadAhead& ahead, float* sums) const {
        constexpr int kColumns = kBlockColumns, kVectors = kPanel / kLanes;
        for (int vector = 0; vector < kTileOutputs / kLanes; vector += kColumns) {
            Block<F, Rows, kColumns> block;
            const Element* columns[kColumns];
            float* const at = sums + vector * kLanes;
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c)
                columns[c] = weight + (vector + c) / kVectors * panel_ + (vector + c) % kVectors * kLanes * F::kPack;
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
                for (int c = 0; c < kColumns; ++c) block.sums[r][c] = load(at + r * kTileOutputs + c * kLanes);
            add_steps(block, x, columns, inputs / F::kPack, vector == 0 ? ahead : ReadAhead{{}, 0});
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
                for (int c = 0; c < kColumns; ++c) store(at + r * kTileOutputs + c * kLanes, block.sums[r][c]);
        }
    }

    template <int Rows, int Columns>
    inline __attribute__((always_inline)) void add_steps(
        Block<F, Rows, Columns>& block, const Factor* x, const Element* const (&weights)[Columns], long steps,
        const ReadAhead& ahead) const {
        constexpr long kStep = kPanel * F::kPack;
        for (long step = 0; step < steps; ++step) {
            typename F::Column columns[Columns];
#pragma GCC unroll 8
            for (int c = 0; c < Columns; ++c) columns[c] = F::column(weights[c] + step * kStep);
            for (int i = 0; i < ahead.count; ++i) prefetch(ahead.panels[i] + step * kStep * static_cast<long>(sizeof(Element)));
            block.add_step(x + step * F::kPack, args_.in_features, columns);
        }
    }

    void finish(int thread, long row, long tile, float* sums) {
        const long first = tile * kTileOutputs;
        if (args_.bias)
            for (int i = 0; i < kTileOutputs; i += kLanes) store(sums + i, add(load(sums + i), load(args_.bias + first + i)));
        outputs_.take(thread, row, first, sums);
    }

    const RinglineLinear& args_;
    Outputs& outputs_;
    const Factor* factors_ = nullptr;
    long tiles_;
    long panel_;  // elements of a panel
    long part_;   // inputs that are taken at a time
    long groups_;  // of rows
    int threads_;
};

// Writes results as a matrix, times the scale and after adding the residual.
template <class F>
class WrittenOutputs {
    using Element = typename F::Element;

public:
    explicit WrittenOutputs(const RinglineLinear& args) : args_(args) {}

    // Write those of a tile's outputs that there are.
    void take(int, long row, long first, float* sums) const {
        const long row_start = row * args_.out_features, left = args_.out_features - first;
        if (left < kTileOutputs) return put_last(sums, row_start + first, left);
        for (int i = 0; i < kTileOutputs; i += kLanes) put_vector(sums + i, row_start + first + i);
    }

private:
    void put_vector(const float* sums, long at) const {
        Vec v = multiply(load(sums), splat(args_.scale));
        if (args_.residual) v = add(v, F::widen(static_cast<const Element*>(args_.residual) + at));
        if (args_.wide)
            store(static_cast<float*>(args_.output) + at, v);
        else
            F::narrow(static_cast<Element*>(args_.output) + at, v);
    }

    void put_last(float* sums, long at, long count) const {
        Element residual[kTileOutputs] = {}, narrow[kTileOutputs];
        if (args_.residual) std::memcpy(residual, static_cast<const Element*>(args_.residual) + at, count * sizeof(Element));
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

template <class F>
int written_linear(const RinglineLinear& args) {
    WrittenOutputs<F> outputs(args);
    return Linear<F, WrittenOutputs<F>>(args, outputs).run();
}

inline int linear(const RinglineLinear& args) {
    switch (args.number_type) {
        case kRinglineFloat32: return written_linear<Float32>(args);
        case kRinglineFloat16: return written_linear<Float16>(args);
        default: return written_linear<BFloat16>(args);
    }
}

}  // namespace
