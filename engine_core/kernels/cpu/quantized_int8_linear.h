// A linear layer, and where its results are greatest, with a weight of integer codes and rows that are rounded to bytes.
#pragma once

#include "argmax.h"
#include "quantized_int8_multiply.h"

namespace {

constexpr long kUnitBlocks = 8;  // of rows, by a tile of outputs: what a thread takes at a time
constexpr long kCodeProductsPerNanosecond = 150, kCodeRoundedPerNanosecond = 4;

// `outputs` take the results of tiles, as in linear.h.
template <class F, class Outputs>
class CodeLinear {
    using Element = typename F::Element;

public:
    CodeLinear(const RinglineLinear& args, Outputs& outputs)
        : args_(args),
          weight_(*static_cast<const RinglineQuantizedWeight*>(args.weight)),
          outputs_(outputs),
          tiles_(weight_),
          rows_(args.rows, tiles_.inputs(), tiles_.codes().bits(), tiles_.codes().first(), tiles_.codes().unit(),
                tiles_.has_minima()),
          ordered_(weight_.input_order ? args.rows * args.in_features * static_cast<long>(sizeof(Element)) : 1) {}

    // Returns 0, or 1 when there is no memory.
    int run() {
        if (rows_.failed() || ordered_.failed()) return 1;
        const long worth = args_.rows < kRowsPerRead ? kRowsPerRead : args_.rows;
        const long products = worth * args_.in_features * args_.out_features;
        const int threads = threads_worth(products / kCodeProductsPerNanosecond, args_.num_threads);
        const int rounding = threads_worth(args_.rows * args_.in_features / kCodeRoundedPerNanosecond, threads);
        parallel_for(rounding, rows_.blocks(), 1, [&](long block) {
            rows_.template round<F>(block, [&](long row) { return input(row); });
        });
        groups_ = (rows_.blocks() + kUnitBlocks - 1) / kUnitBlocks;
        const long units = tiles_.count() * groups_;
        long next = 0;
        in_parallel(threads, [&](int thread) {
            alignas(kCacheLine) float results[kUnitBlocks * kCodeRows * kTileOutputs];
            for (long unit = take(next); unit < units;) {
                const long following = take(next);
                compute(thread, unit, following < units ? following : unit, results);
                unit = following;
            }
        });
        return 0;
    }

private:
    const Element* input(long row) const {
        const Element* const from = static_cast<const Element*>(args_.x) + row * args_.in_features;
        if (!weight_.input_order) return from;
        Element* const to = reinterpret_cast<Element*>(ordered_.at(0)) + row * args_.in_features;
        for (long i = 0; i < args_.in_features; ++i) to[i] = from[weight_.input_order[i]];
        return to;
    }

    void compute(int thread, long unit, long following, float* results) const {
        const long tile = unit / groups_, group = unit % groups_;
        const long first = group * rows_.blocks() / groups_, end = (group + 1) * rows_.blocks() / groups_;
        tiles_.multiply(tile, rows_, first, end, following / groups_, results);
        for (long row = rows_.first(first); row < rows_.first(end); ++row, results += kTileOutputs)
            put(thread, row, tile * kTileOutputs, results);
    }

    void put(int thread, long row, long output, float* results) const {
        if (args_.bias)
            for (int i = 0; i < kTileOutputs; i += kLanes)
                store(results + i, add(load(results + i), load(args_.bias + output + i)));
        outputs_.take(thread, row, output, results);
    }

    const RinglineLinear& args_;
    const RinglineQuantizedWeight& weight_;
    Outputs& outputs_;
    const CodeTiles tiles_;
    const CodeRows rows_;
    const Buffer ordered_;  // rows with their inputs in the weight's order
    long groups_ = 0;       // of blocks of rows
};

inline int quantized_int8_linear(const RinglineLinear& args) {
    return with_number_type(args.number_type, [&](auto number) {
        using F = decltype(number);
        WrittenOutputs<F> outputs(args);
        return CodeLinear<F, WrittenOutputs<F>>(args, outputs).run();
    });
}

inline int quantized_int8_argmax(const RinglineLinear& args) {
    return with_number_type(args.number_type, [&](auto number) {
        GreatestOutputs outputs(args, args.num_threads);
        if (outputs.failed() || CodeLinear<decltype(number), GreatestOutputs>(args, outputs).run() != 0) return 1;
        outputs.put();
        return 0;
    });
}

}  // namespace
