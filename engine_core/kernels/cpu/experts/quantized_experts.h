// Experts with quantized weights: experts/experts.h with the products of quantized/linear.h. Gate and up share a format;
// down may have another.
#pragma once

#include "experts/experts.h"
#include "quantized/linear.h"

namespace {

// All experts' rows, with inputs in the order of their expert's weight.
template <class Factor>
class OrderedRows {
public:
    OrderedRows(const RinglineQuantizedWeight& weight, const ExpertRows& rows, const void* x, int threads)
        : buffer_(weight.input_order ? rows.count() * weight.in_features * static_cast<long>(sizeof(Factor)) : 1),
          x_(static_cast<const Factor*>(x)) {
        if (!weight.input_order || failed()) return;
        const long width = weight.in_features;
        auto* const to = reinterpret_cast<Factor*>(buffer_.at(0));
        parallel_for(threads_worth(rows.count() * width / kConvertedPerNanosecond, threads), rows.num_active(), 1, [&](long i) {
            const int expert = rows.active(i);
            const int32_t* const order = weight.input_order + expert * width;
            for (long place = rows.start(expert); place < rows.start(expert) + rows.count(expert); ++place)
                for (long input = 0; input < width; ++input)
                    to[place * width + input] = static_cast<const Factor*>(x)[place * width + order[input]];
        });
        x_ = to;
    }

    bool failed() const { return buffer_.failed(); }
    const Factor* x() const { return x_; }

private:
    const Buffer buffer_;
    const Factor* x_;
};

// then(products by a weight, for its bits; the experts' rows). Returns 0, or 1 when there is no memory.
template <class F, class Then>
int with_products_of(const void* weight_of, const ExpertRows& expert_rows, const void* x, int threads, const Then& then) {
    using D = typename DecodedOf<F>::Type;
    const auto& weight = *static_cast<const RinglineQuantizedWeight*>(weight_of);
    const OrderedRows<typename D::Factor> ordered(weight, expert_rows, x, threads);
    if (ordered.failed()) return 1;
    const auto* const factors = ordered.x();
    const long rows = expert_rows.count();
    const auto visit = [&](const auto& products) { return products.failed() ? 1 : then(products, factors); };
    return with_bits(weight.bits, [&](auto bits) {
        return visit(QuantizedTileProducts<D, Codes<D, bits.value>>(weight, factors, weight.in_features, rows, threads));
    });
}

template <class F, class Products>
GateUp<F, Products> gate_up_by(const Products& products, const void* x, const RinglineExperts& args, const ExpertRows& rows,
                        const ExpertAdapters<F>& adapters) {
    return {args, rows, adapters, products, x};
}
template <class F, class Products>
Down<F, Products> down_by(const Products& products, const void* x, const RinglineExperts& args, const ExpertRows& rows,
                        const ExpertAdapters<F>& adapters) {
    return {args, rows, adapters, products, x};
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
        const ExpertAdapters<F> adapters(args, rows, kExpanding);
        if (adapters.failed()) return 1;
        gather_rows_of_experts<F>(args, rows);
        adapters.shrink(args.gathered, args.num_threads);
        const int failed = with_products_of<F>(args.gate_up, rows, args.gathered, threads, [&](const auto& products, const auto* x) {
            return multiply(gate_up_by<F>(products, x, args, rows, adapters));
        });
        if (failed) return failed;
    }
    if (!(args.phases & kRinglineDown)) return 0;
    const ExpertAdapters<F> adapters(args, rows, kReducing);
    if (adapters.failed()) return 1;
    adapters.shrink(args.activated, args.num_threads);
    return with_products_of<F>(args.down, rows, args.activated, threads, [&](const auto& products, const auto* x) {
        return multiply(down_by<F>(products, x, args, rows, adapters));
    });
}

inline int quantized_experts(const RinglineExperts& args) {
    return with_number_type(args.number_type, [&](auto number) {
        using F = decltype(number);
        return run_experts<F>(args, [&](const ExpertRows& rows) { return multiply_quantized_experts<F>(args, rows); });
    });
}

}  // namespace
