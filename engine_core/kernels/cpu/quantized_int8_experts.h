// Experts with weights of integer codes, whose rows are rounded to bytes before either product: experts.h with the products
// of quantized_int8_multiply.h.
#pragma once

#include "experts.h"
#include "quantized_int8_linear.h"

namespace {

// Round the rows of all experts as their units take them, with their inputs in the order of each expert's weight; input(place):
// numbers of F. Returns 0, or 1 when there is no memory.
template <class F, class Input>
int round_rows_of_experts(const CodeProducts& products, const RinglineQuantizedWeight& weight, const RinglineExperts& args,
                          const ExpertRows& rows, const Input& input) {
    using Element = typename F::Element;
    const long inputs = weight.in_features;
    const ExpertUnits groups(rows, [&](int expert) { return row_groups(rows.count(expert)); });
    const Buffer buffer(weight.input_order ? rows.count() * inputs * static_cast<long>(sizeof(Element)) : 1);
    if (groups.failed() || buffer.failed()) return 1;
    auto* const ordered = reinterpret_cast<Element*>(buffer.at(0));
    const int threads = threads_worth(rows.count() * inputs / kCodeRoundedPerNanosecond, args.num_threads);
    parallel_for(threads, groups.count(), 1, [&](long number) {
        const auto [expert, group] = groups.find(number);
        const int32_t* const order = weight.input_order ? weight.input_order + expert * inputs : nullptr;
        const long count = rows.count(expert), start = group_start(count, group);
        const CodeBlocks blocks(group_start(count, group + 1) - start);
        for (long block = 0; block < blocks.count; ++block)
            products.template round<F>(rows.start(expert) + start, blocks, block, [&](long place) {
                const Element* const from = input(place);
                if (!order) return from;
                for (long i = 0; i < inputs; ++i) ordered[place * inputs + i] = from[order[i]];
                return static_cast<const Element*>(ordered + place * inputs);
            });
    });
    return 0;
}

// Returns 0, or 1 when there is no memory.
template <class F>
int multiply_code_experts(const RinglineExperts& args, const ExpertRows& rows) {
    using Element = typename F::Element;
    // What the activation gives is kept in factors, which are floats.
    static_assert(sizeof(typename F::Factor) == sizeof(float));
    const int threads = threads_of_experts(args, rows);
    if (args.phases & kRinglineGateUp) {
        const auto& weight = *static_cast<const RinglineQuantizedWeight*>(args.gate_up);
        const CodeProducts products(weight, rows.count());
        const GateUp<F, CodeProducts> gate_up(args, rows, products, nullptr);
        if (products.failed() || gate_up.failed()) return 1;
        const auto* const x = static_cast<const Element*>(args.x);
        const int failed = round_rows_of_experts<F>(products, weight, args, rows, [&](long place) {
            return x + rows.pair(place) / args.top_k * args.hidden;
        });
        if (failed) return failed;
        multiply_tiles(products, threads, gate_up);
    }
    if (!(args.phases & kRinglineDown)) return 0;
    const auto& weight = *static_cast<const RinglineQuantizedWeight*>(args.down);
    const CodeProducts products(weight, rows.count());
    const Down<F, CodeProducts> down(args, rows, products, nullptr);
    if (products.failed() || down.failed()) return 1;
    const auto* const activated = static_cast<const float*>(args.activated);
    const int failed = round_rows_of_experts<Float32>(products, weight, args, rows, [&](long place) {
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
