// Elementwise operations: the activation of a feed-forward block, with its gate if any (SwiGLU and GeGLU,
// https://arxiv.org/abs/2002.05202), and the gate of a shared expert.
#pragma once

#include "simd/exponent.h"
#include "rows/norm.h"

namespace {

constexpr long kActivatedPerNanosecond = 3;

// x / (1 + e⁻ᵗ)
inline Vec times_sigmoid(Vec x, Vec t) {
    // Below −87, e⁻ᵗ would overflow; x divided by it is 0 to any precision.
    const Vec limited = maximum_of(splat(-87.0f), t);
    return divide(x, add(splat(1.0f), exp2_of(multiply(limited, splat(-1.44269504088896340736f)))));
}

struct Silu {
    static Vec of(Vec x) { return times_sigmoid(x, x); }
};

// x · Φ(x) ≈ x / (1 + e⁻ᵗ) with t = 2 √(2/π) (x + 0.044715 x³) (https://arxiv.org/abs/1606.08415)
struct GeluTanh {
    static Vec of(Vec x) {
        const Vec cubic = multiply_add(multiply(x, x), splat(0.044715f), splat(1.0f));
        return times_sigmoid(x, multiply(multiply(x, cubic), splat(1.5957691216057308f)));
    }
};

// x · Φ(x) = x/2 · erfc(−x/√2), with erfc by a Chebyshev fit whose relative error is below 1.2e-7 (Press et al., Numerical
// Recipes, 2nd edition, 6.2).
struct Gelu {
    static Vec of(Vec x) {
        const Vec z = multiply(x, splat(0.70710678118654752440f));
        const Vec size = maximum_of(z, subtract(splat(0.0f), z));
        const Vec tail = complement(maximum_of(splat(-13.0f), subtract(splat(0.0f), size)));
        const Vec erfc = zero_where_less(tail, z, splat(0.0f));  // erfc(z) for z ≥ 0
        const Vec below = subtract(tail, erfc);                  // erfc(−z) for z < 0
        const Vec above = zero_where_less(subtract(splat(2.0f), erfc), z, splat(0.0f));
        return multiply(multiply(x, splat(0.5f)), add(above, below));
    }

private:
    // erfc(−z) for −13 ≤ z ≤ 0; beyond, it is 0 to any precision.
    static Vec complement(Vec z) {
        const Vec t = divide(splat(1.0f), multiply_add(z, splat(-0.5f), splat(1.0f)));
        constexpr float kFit[] = {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                                  0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
        Vec p = splat(0.17087277f);
        for (const float c : kFit) p = multiply_add(p, t, splat(c));
        const Vec power = multiply_add(subtract(splat(0.0f), z), z, p);
        return multiply(t, exp2_of(multiply(power, splat(1.44269504088896340736f))));
    }
};

struct Relu {
    static Vec of(Vec x) { return maximum_of(splat(0.0f), x); }  // NaN stays NaN
};

struct Relu2 {
    static Vec of(Vec x) { return multiply(Relu::of(x), Relu::of(x)); }
};

struct Sigmoid {
    static Vec of(Vec x) { return times_sigmoid(splat(1.0f), x); }
};

template <class F, class Activation>
int activate_rows(const RinglineActivation& args) {
    using Element = typename F::Element;
    const long width = args.width;
    const int threads = threads_worth(args.rows * width / kActivatedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        const Element* const x = static_cast<const Element*>(args.x) + row * args.x_stride;
        const Element* const up = args.up ? static_cast<const Element*>(args.up) + row * args.up_stride : nullptr;
        Element* const output = static_cast<Element*>(args.output) + row * args.output_stride;
        for (long i = 0; i < width; i += kLanes) {
            const Vec y = Activation::of(F::widen(x + i));
            F::narrow(output + i, up ? multiply(y, F::widen(up + i)) : y);
        }
    });
    return 0;
}

template <class F>
int activate_as(const RinglineActivation& args) {
    switch (args.kind) {
        case kRinglineSilu: return activate_rows<F, Silu>(args);
        case kRinglineGelu: return activate_rows<F, Gelu>(args);
        case kRinglineGeluTanh: return activate_rows<F, GeluTanh>(args);
        case kRinglineSigmoidGate: return activate_rows<F, Sigmoid>(args);
        case kRinglineRelu2: return activate_rows<F, Relu2>(args);
        default: return activate_rows<F, Relu>(args);
    }
}

inline int activate(const RinglineActivation& args) {
    return with_number_type(args.number_type, [&](auto number) { return activate_as<decltype(number)>(args); });
}

// Rows, each times the sigmoid of a number, plus a residual.
template <class F>
int gate_rows(const RinglineSigmoidGate& args) {
    using Element = typename F::Element;
    const long width = args.width, all = args.groups * width;
    const int threads = threads_worth(args.rows * all / kActivatedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, rows_of_piece(all), [&](long row) {
        for (long group = row * args.groups; group < (row + 1) * args.groups; ++group) {
            const Element* const x = static_cast<const Element*>(args.x) + group * width;
            const Element* const residual = args.residual ? static_cast<const Element*>(args.residual) + group * width : nullptr;
            Element* const output = static_cast<Element*>(args.output) + group * width;
            const Vec share = times_sigmoid(splat(1.0f), splat(args.logits[group]));
            for (long i = 0; i < width; i += kLanes)
                F::narrow(output + i, multiply_add(F::widen(x + i), share, residual ? F::widen(residual + i) : splat(0.0f)));
        }
    });
    return 0;
}

inline int sigmoid_gate(const RinglineSigmoidGate& args) {
    return with_number_type(args.number_type, [&](auto number) { return gate_rows<decltype(number)>(args); });
}

}  // namespace
