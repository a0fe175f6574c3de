// Normalizes groups of rows by root mean square, with a gate. Sums run as in rows/norm.h.
#pragma once

#include "rows/elementwise.h"
#include "states/sequences.h"

namespace {

// One group. F is the number type.
template <class F>
class GatedNormOfGroup {
    using Element = typename F::Element;

public:
    GatedNormOfGroup(const RinglineGatedNorm& args, long row, long group)
        : args_(args),
          x_(static_cast<const Element*>(args.x) + row * args.x_stride + group * args.x_group_stride),
          gate_(static_cast<const Element*>(args.gate) + row * args.gate_stride + group * args.gate_group_stride),
          weight_(args.weight + group * args.weight_group_stride),
          output_(static_cast<Element*>(args.output) + (row * args.groups + group) * args.width) {}

    void norm_then_gate() const {
        const Vec inverse = splat(inverse_root_mean_square<F>(x_, args_.width, args_.mean_width, args_.epsilon));
        for (long i = 0; i < args_.width; i += kLanes) {
            const Vec y = multiply(multiply(F::widen(x_ + i), inverse), load(weight_ + i));
            F::narrow(output_ + i, multiply(y, Silu::of(F::widen(gate_ + i))));
        }
    }

    // `gated` [width] takes x · silu(gate).
    void gate_then_norm(float* gated) const {
        for (long i = 0; i < args_.width; i += kLanes)
            store(gated + i, multiply(F::widen(x_ + i), Silu::of(F::widen(gate_ + i))));
        const Vec inverse = splat(inverse_root_mean_square<Float32>(gated, args_.width, args_.mean_width, args_.epsilon));
        for (long i = 0; i < args_.width; i += kLanes)
            F::narrow(output_ + i, multiply(multiply(load(gated + i), inverse), load(weight_ + i)));
    }

private:
    const RinglineGatedNorm& args_;
    const Element *const x_, *const gate_;
    const float* const weight_;
    Element* const output_;
};

template <class F>
int norm_with_gate(const RinglineGatedNorm& args) {
    const long groups = args.rows * args.groups, piece = rows_of_piece(args.width), pieces = (groups + piece - 1) / piece;
    const int threads = threads_worth(groups * args.width / kActivatedPerNanosecond, args.num_threads);
    return for_each_with_memory(threads, pieces, padded_bytes<float>(args.width), [&](long item, char* memory) {
        for (long i = item * piece; i < groups && i < (item + 1) * piece; ++i) {
            const GatedNormOfGroup<F> group(args, i / args.groups, i % args.groups);
            if (args.norm_before_gate)
                group.norm_then_gate();
            else
                group.gate_then_norm(reinterpret_cast<float*>(memory));
        }
    });
}

inline int gated_norm(const RinglineGatedNorm& args) {
    return with_number_type(args.number_type, [&](auto number) { return norm_with_gate<decltype(number)>(args); });
}

}  // namespace
