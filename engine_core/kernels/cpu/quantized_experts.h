// Experts with weights that stay quantized: experts.h with the products of quantized_linear.h. Gate and up are in one
// format, down perhaps in another.
#pragma once

#include "experts.h"
#include "quantized_linear.h"

namespace {

// f(products of rows by a weight), for its bits.
template <class F, class Then>
int with_products_of(const RinglineQuantizedWeight& weight, const void* x, long rows, int threads, const Then& then) {
    using D = typename DecodedOf<F>::Type;
    const auto* const factors = static_cast<const typename D::Factor*>(x);
    const auto visit = [&](const auto& products) { return products.failed() ? 1 : then(products); };
    if (weight.bits == 4) return visit(QuantizedTileProducts<D, Codes<D, 4>>(weight, factors, weight.in_features, rows, threads));
    return visit(QuantizedTileProducts<D, Codes<D, 8>>(weight, factors, weight.in_features, rows, threads));
}

template <class F, class Products>
GateUp<F, Products> gate_up_by(const Products& products, const RinglineExperts& args, const ExpertRows& rows) {
    return {args, rows, products, nullptr};
}
template <class F, class Products>
Down<F, Products> down_by(const Products& products, const RinglineExperts& args, const ExpertRows& rows) {
    return {args, rows, products};
}

// Returns 0, or 1 when there is no memory.
template <class F>
int multiply_quantized_experts(const RinglineExperts& args, const ExpertRows& rows) {
    const int threads = threads_of_experts(args, rows);
    const auto multiply = [&](const auto& work) {
        if (work.failed()) return 1;
        multiply_tiles(work.products(), threads, work);
        return 0;
    };
    if (args.phases & kRinglineGateUp) {
        gather_rows_of_experts<F>(args, rows);
        const auto& weight = *static_cast<const RinglineQuantizedWeight*>(args.gate_up);
        const int failed = with_products_of<F>(weight, args.gathered, rows.count(), threads, [&](const auto& products) {
            return multiply(gate_up_by<F>(products, args, rows));
        });
        if (failed) return failed;
    }
    if (!(args.phases & kRinglineDown)) return 0;
    const auto& weight = *static_cast<const RinglineQuantizedWeight*>(args.down);
    return with_products_of<F>(weight, args.activated, rows.count(), threads, [&](const auto& products) {
        return multiply(down_by<F>(products, args, rows));
    });
}

inline int quantized_experts(const RinglineExperts& args) {
    return with_number_type(args.number_type, [&](auto number) {
        using F = decltype(number);
        return run_experts<F>(args, [&](const ExpertRows& rows) { return multiply_quantized_experts<F>(args, rows); });
    });
}

}  // namespace
