// Rows times the sigmoid of one number each, plus a residual: a shared expert and its gate.
#pragma once

#include "activation.h"

namespace {

template <class F>
int gate_rows(const RinglineSigmoidGate& args) {
    using Element = typename F::Element;
    const long width = args.width;
    const int threads = threads_worth(args.rows * width / kActivatedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        const Element* const x = static_cast<const Element*>(args.x) + row * width;
        const Element* const residual = static_cast<const Element*>(args.residual) + row * width;
        Element* const output = static_cast<Element*>(args.output) + row * width;
        const Vec share = times_sigmoid(splat(1.0f), splat(args.logits[row]));
        for (long i = 0; i < width; i += kLanes)
            F::narrow(output + i, multiply_add(F::widen(x + i), share, F::widen(residual + i)));
    });
    return 0;
}

inline int sigmoid_gate(const RinglineSigmoidGate& args) {
    switch (args.number_type) {
        case kRinglineFloat32: return gate_rows<Float32>(args);
        case kRinglineFloat16: return gate_rows<Float16>(args);
        default: return gate_rows<BFloat16>(args);
    }
}

}  // namespace
