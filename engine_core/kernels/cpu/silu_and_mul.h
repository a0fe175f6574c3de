// The gated activation between the two halves of a feed-forward block (SwiGLU, https://arxiv.org/abs/2002.05202).
#pragma once

#include "exponent.h"
#include "norm.h"

namespace {

constexpr long kGatedPerNanosecond = 3;

// x / (1 + e⁻ˣ)
inline Vec silu(Vec x) {
    // Below −87, e⁻ˣ would leave the range of floats; x divided by it is 0 to any precision.
    const Vec limited = maximum_of(splat(-87.0f), x);
    return divide(x, add(splat(1.0f), exp2_of(multiply(limited, splat(-1.44269504088896340736f)))));
}

template <class F>
int gate_rows(const RinglineGate& args) {
    using Element = typename F::Element;
    const long width = args.width;
    const int threads = threads_worth(args.rows * width / kGatedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        const Element* const gate = static_cast<const Element*>(args.gate_up) + row * 2 * width;
        Element* const output = static_cast<Element*>(args.output) + row * width;
        for (long i = 0; i < width; i += kLanes)
            F::narrow(output + i, multiply(silu(F::widen(gate + i)), F::widen(gate + width + i)));
    });
    return 0;
}

inline int silu_and_multiply(const RinglineGate& args) {
    switch (args.number_type) {
        case kRinglineFloat32: return gate_rows<Float32>(args);
        case kRinglineFloat16: return gate_rows<Float16>(args);
        default: return gate_rows<BFloat16>(args);
    }
}

}  // namespace
