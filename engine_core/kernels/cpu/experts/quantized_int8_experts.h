// Experts with weights of integer codes; rows are rounded to bytes before either product: experts/experts.h with the
// products of quantized/int8_activations_multiply.h.
#pragma once

#include "experts/experts.h"
#include "quantized/int8_activations_linear.h"

namespace {

// Reorders rows' inputs to the order of their expert's weight.
template <class Element>
class ExpertInputs {
public:
    ExpertInputs(const RinglineQuantizedWeight& weight, long rows)
        : order_(weight.input_order),
          width_(weight.in_features),
          buffer_(order_ ? rows * width_ * static_cast<long>(sizeof(Element)) : 1) {}

    bool failed() const { return buffer_.failed(); }

    const Element* ordered(int expert, long place, const Element* from) const {
        if (!order_) return from;
        auto* const to = reinterpret_cast<Element*>(buffer_.at(0)) + place * width_;
        for (long i = 0; i < width_; ++i) to[i] = from[order_[expert * width_ + i]];
        return to;
    }

private:
    const int32_t* const order_;  // [E, K]
    const long width_;
    const Buffer buffer_;
};

// Round all experts' rows, by the blocks of their units; input(place): numbers of F.
template <class F, class Input>
int round_rows_of_experts(const CodeProducts& products, const RinglineExperts& args, const void* weight, const ExpertRows& rows,
                          long inputs, const Input& input) {
    const ExpertInputs<typename F::Element> given(*static_cast<const RinglineQuantizedWeight*>(weight), rows.count());
    const ExpertUnits groups(rows, [&](int expert) { return row_groups(rows.count(expert)); });
    if (groups.failed() || given.failed()) return 1;
    const int threads = threads_worth(rows.count() * inputs / kCodeRoundedPerNanosecond, args.num_threads);
    parallel_for(threads, groups.count(), 1, [&](long number) {
        const auto [expert, group] = groups.find(number);
        const auto ordered = [&, expert = expert](long place) { return given.ordered(expert, place, input(place)); };
        const long count = rows.count(expert), start = group_start(count, group);
        const CodeBlocks blocks(group_start(count, group + 1) - start);
        for (long block = 0; block < blocks.count; ++block)
            products.template round<F>(rows.start(expert) + start, blocks, block, ordered);
    });
    return 0;
}

// Returns 0, or 1 when there is no memory.
template <class F>
int multiply_code_experts(const RinglineExperts& args, const ExpertRows& rows) {
    using Element = typename F::Element;
    // Activated numbers are stored as factors, which are floats.
    static_assert(sizeof(typename F::Factor) == sizeof(float));
    const int threads = threads_of_experts(args, rows);
    if (args.phases & kRinglineGateUp) {
        const CodeProducts products(*static_cast<const RinglineQuantizedWeight*>(args.gate_up), rows.count());
        const ExpertAdapters<F> adapters(args, rows, kExpanding);
        const GateUp<F, CodeProducts> gate_up(args, rows, adapters, products, nullptr);
        if (products.failed() || gate_up.failed() || adapters.failed()) return 1;
        const auto input = [&](long place) {
            return static_cast<const Element*>(args.x) + rows.pair(place) / args.top_k * args.hidden;
        };
        if (adapters.shrink_numbers(input, args.num_threads) != 0) return 1;
        if (round_rows_of_experts<F>(products, args, args.gate_up, rows, args.hidden, input) != 0) return 1;
        multiply_tiles(products, threads, gate_up);
    }
    if (!(args.phases & kRinglineDown)) return 0;
    const CodeProducts products(*static_cast<const RinglineQuantizedWeight*>(args.down), rows.count());
    const ExpertAdapters<F> adapters(args, rows, kReducing);
    const Down<F, CodeProducts> down(args, rows, adapters, products, nullptr);
    if (products.failed() || down.failed() || adapters.failed()) return 1;
    adapters.shrink(args.activated, args.num_threads);
    const auto* const activated = static_cast<const float*>(args.activated);
    const int failed = round_rows_of_experts<Float32>(products, args, args.down, rows, args.inner, [&](long place) {
        return activated + place * args.inner;
    });
    if (failed) return failed;
    multiply_tiles(products, threads, down);
    return 0;
}

inline int quantized_int8_experts(const RinglineExperts& args) {
    return with_number_type(args.number_type, [&](auto number) {
        using F = decltype(number);
        return run_experts<F>(args, [&](const ExpertRows& rows) { return multiply_code_experts<F>(args, rows); });
    });
}

}  // namespace
