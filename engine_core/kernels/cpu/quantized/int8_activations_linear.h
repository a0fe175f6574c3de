// A linear layer, and its argmax, with a weight of integer codes and rows rounded to bytes.
#pragma once

#include "linear/argmax.h"
#include "quantized/int8_activations_multiply.h"

namespace {

constexpr long kCodeProductsPerNanosecond = 150, kCodeRoundedPerNanosecond = 4;

// `outputs` receives tiles' results, as in linear/linear.h.
template <class F, class Outputs>
class CodeLinear {
    using Element = typename F::Element;
    using CodeUnit = Unit<F, CodeProducts::Tile>;

public:
    CodeLinear(const RinglineLinear& args, Outputs& outputs)
        : args_(args),
          weight_(*static_cast<const RinglineQuantizedWeight*>(args.weight)),
          outputs_(outputs),
          products_(weight_, args.rows),
          groups_(row_groups(args.rows)),
          ordered_(weight_.input_order ? args.rows * args.in_features * static_cast<long>(sizeof(Element)) : 1) {}

    // Returns 0, or 1 when there is no memory.
    int run() {
        if (products_.failed() || ordered_.failed()) return 1;
        const long worth = args_.rows < kRowsPerRead ? kRowsPerRead : args_.rows;
        const long products = worth * args_.in_features * args_.out_features;
        const int threads = threads_worth(products / kCodeProductsPerNanosecond, args_.num_threads);
        const int rounding = threads_worth(args_.rows * args_.in_features / kCodeRoundedPerNanosecond, threads);
        for (long group = 0; group < groups_; ++group) {
            const long first = group_start(args_.rows, group);
            const CodeBlocks blocks(group_start(args_.rows, group + 1) - first);
            parallel_for(rounding, blocks.count, 1, [&](long block) {
                products_.template round<F>(first, blocks, block, [&](long row) { return input(row); });
            });
        }
        multiply_tiles(products_, threads, *this);
        return 0;
    }

    long units() const { return (args_.out_features + kTileOutputs - 1) / kTileOutputs * groups_; }
    CodeUnit unit(long number) const {
        const long tile = number / groups_, group = number % groups_, first = group_start(args_.rows, group);
        return {products_.tile(tile), nullptr, first, group_start(args_.rows, group + 1) - first, tile * kTileOutputs, 0};
    }
    CodeProducts::Tile after_all(const CodeUnit& unit) const { return unit.tile; }

    void take(int thread, const CodeUnit& unit, long row, float* results) const {
        if (args_.bias)
            for (int i = 0; i < kTileOutputs; i += kLanes)
                store(results + i, add(load(results + i), load(args_.bias + unit.output + i)));
        outputs_.take(thread, row, unit.output, results);
    }

private:
    const Element* input(long row) const {
        const Element* const from = static_cast<const Element*>(args_.x) + row * args_.in_features;
        if (!weight_.input_order) return from;
        Element* const to = reinterpret_cast<Element*>(ordered_.at(0)) + row * args_.in_features;
        for (long i = 0; i < args_.in_features; ++i) to[i] = from[weight_.input_order[i]];
        return to;
    }

    const RinglineLinear& args_;
    const RinglineQuantizedWeight& weight_;
    Outputs& outputs_;
    const CodeProducts products_;
    const long groups_;     // of rows
    const Buffer ordered_;  // rows with their inputs in the weight's order
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
