// Experts as in experts/experts.h, with 8-bit weights: rows are rounded to 8 bits before either product; before the second,
// the activation is first rounded to its type.
#pragma once

#include "experts/expert_adapters.h"
#include "quantized/int8_multiply.h"

namespace {

template <class F>
class Int8Experts {
    using Element = typename F::Element;

public:
    explicit Int8Experts(const RinglineExperts& args)
        : args_(args),
          gate_up_(*static_cast<const RinglineInt8Weight*>(args.gate_up)),
          down_(*static_cast<const RinglineInt8Weight*>(args.down)),
          rows_(args) {}

    // Returns 0, or 1 when there is no memory.
    int run() const {
        if (rows_.failed()) return 1;
        const ExpertUnits blocks(rows_, [&](int expert) { return QuantizedRows::blocks_of(rows_.count(expert)); });
        if (blocks.failed()) return 1;
        const long pairs = rows_.count(), worth = pairs < kRowsPerRead ? kRowsPerRead : pairs;
        const int threads = threads_worth(worth * products_of_pair(args_) / kInt8ProductsPerNanosecond, args_.num_threads);
        if (args_.phases & kRinglineGateUp && multiply_gate_up(blocks, threads) != 0) return 1;
        return args_.phases & kRinglineDown ? multiply_down(blocks, threads) : 0;
    }

private:
    int multiply_gate_up(const ExpertUnits& blocks, int threads) const {
        const ExpertAdapters<F> adapters(args_, rows_, kExpanding);
        const auto input = [&](long place) {
            return static_cast<const Element*>(args_.x) + rows_.pair(place) / args_.top_k * args_.hidden;
        };
        if (adapters.failed() || adapters.shrink_numbers(input, args_.num_threads) != 0) return 1;
        round(blocks, args_.hidden, threads, input);
        return compute(gate_up_, threads, [&](const Panels& weight, long place, long panel, const int32_t* sums) {
            activate(weight, adapters, place, panel, sums);
        });
    }

    int multiply_down(const ExpertUnits& blocks, int threads) const {
        const ExpertAdapters<F> adapters(args_, rows_, kReducing);
        const auto input = [&](long place) { return activated() + place * args_.inner; };
        if (adapters.failed() || adapters.shrink_numbers(input, args_.num_threads) != 0) return 1;
        round(blocks, args_.inner, threads, input);
        return compute(down_, threads, [&](const Panels& weight, long place, long panel, const int32_t* sums) {
            put(weight, adapters, place, panel, sums);
        });
    }

    Element* activated() const { return static_cast<Element*>(args_.activated); }

    QuantizedRows rows_of(int expert, long inputs) const {
        const long start = rows_.start(expert);
        return {rows_.count(expert), inputs, static_cast<int32_t*>(args_.rounded) + start * (inputs / 4),
                args_.row_scales + start};
    }

    // Round the rows of all experts; input(place): `inputs` numbers.
    template <class Input>
    void round(const ExpertUnits& blocks, long inputs, int threads, const Input& input) const {
        const long numbers = rows_.count() * inputs;
        parallel_for(threads_worth(numbers / kRoundedPerNanosecond, threads), blocks.count(), 1, [&](long number) {
            const auto [expert, block] = blocks.find(number);
            const long start = rows_.start(expert);
            rows_of(expert, inputs).template quantize<F>(block, [&](long row) { return input(start + row); });
        });
    }

    // Multiply each expert's rounded rows by its weight. Returns 0, or 1 when there is no memory.
    template <class Finish>
    int compute(const RinglineInt8Weight& weight, int threads, const Finish& finish) const {
        const Panels any(weight);
        long units = 0;
        for (int i = 0; i < rows_.num_active(); ++i)
            units += any.count() * Pieces::of_rows(QuantizedRows::blocks_of(rows_.count(rows_.active(i))));
        const long panels = Pieces::panels_of(units, any, threads);
        const auto pieces_of = [&](int expert) {
            return Pieces(any, QuantizedRows::blocks_of(rows_.count(expert)), panels);
        };
        const ExpertUnits pieces(rows_, [&](int expert) { return pieces_of(expert).count(); });
        if (pieces.failed()) return 1;
        parallel_for(threads, pieces.count(), 1, [&](long number) {
            const auto [expert, piece] = pieces.find(number);
            const Panels own(weight, expert);
            const long start = rows_.start(expert);
            pieces_of(expert).compute(piece, own, rows_of(expert, weight.in_features),
                                      [&](long row, long panel, const int32_t* sums) { finish(own, start + row, panel, sums); });
        });
        return 0;
    }

    void activate(const Panels& weight, const ExpertAdapters<F>& adapters, long place, long panel, const int32_t* sums) const {
        const int inner = inner_of(args_, kInt8Panel);
        const long first = panel * kInt8Panel, left = args_.inner_part - panel * inner, count = left < inner ? left : inner;
        Element* const to = activated() + place * args_.inner_part + panel * inner;
        const float factor = input_weight(args_, rows_.pair(place));
        float results[kInt8Panel];
        for (int i = 0; i < kInt8Panel; i += kLanes)
            store(results + i, weight.result(sums + i, first + i, args_.row_scales[place] * factor));
        if (adapters.any()) {
            add(adapters, place, panel * inner, count, factor, results);
            if (args_.gated) add(adapters, place, args_.inner_part + panel * inner, count, factor, results + inner);
        }
        for (long i = 0; i < count; i += kLanes) {
            const Vec up = args_.gated ? load(results + inner + i) : splat(1.0f);
            F::narrow(to + i, gated(args_, load(results + i), up));
        }
    }

    void put(const Panels& weight, const ExpertAdapters<F>& adapters, long place, long panel, const int32_t* sums) const {
        const long pair = rows_.pair(place), left = args_.hidden_part - panel * kInt8Panel, count = left < kInt8Panel ? left : kInt8Panel;
        Element* const to = static_cast<Element*>(args_.outputs) + pair * args_.hidden_part + panel * kInt8Panel;
        const Vec factor = splat(output_weight(args_, pair));
        float results[kInt8Panel];
        for (int i = 0; i < kInt8Panel; i += kLanes)
            store(results + i, weight.result(sums + i, panel * kInt8Panel + i, args_.row_scales[place]));
        if (adapters.any()) add(adapters, place, panel * kInt8Panel, count, 1.0f, results);
        for (long i = 0; i < count; i += kLanes) F::narrow(to + i, multiply(load(results + i), factor));
    }

    // Add what a pair's adapter adds, times `factor`.
    static void add(const ExpertAdapters<F>& adapters, long place, long first, long count, float factor, float* results) {
        float added[kInt8Panel] = {};
        adapters.add(place, first, count, added);
        for (long i = 0; i < count; i += kLanes)
            store(results + i, ::add(load(results + i), multiply(load(added + i), splat(factor))));
    }

    const RinglineExperts& args_;
    const RinglineInt8Weight &gate_up_, &down_;
    const ExpertRows rows_;
};

template <class F>
int run_int8_experts(const RinglineExperts& args) {
    if (args.rows == 0) return 0;
    if (args.phases & (kRinglineGateUp | kRinglineDown))
        if (Int8Experts<F>(args).run() != 0) return 1;
    if (args.phases & kRinglineSum) sum_experts<F>(args);
    return 0;
}

inline int int8_experts(const RinglineExperts& args) {
    return with_number_type(args.number_type, [&](auto number) { return run_int8_experts<decltype(number)>(args); });
}

}  // namespace
