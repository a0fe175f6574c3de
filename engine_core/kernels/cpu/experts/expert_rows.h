// What experts share, whatever their weights: the rows of each expert, the activation between the two products, and the
// sum over a row's experts.
#pragma once

#include "rows/elementwise.h"
#include "experts/expert_phases.h"
#include "threads/memory.h"

namespace {

constexpr long kSummedPerNanosecond = 4;

// The rows of each of this rank's experts: pairs of a row and one of its k places, ascending. Experts are numbered
// from this rank's first.
class ExpertRows {
public:
    explicit ExpertRows(const RinglineExperts& args)
        : buffer_(2 * padded_bytes<int32_t>(args.num_experts + 1) + padded_bytes<int32_t>(args.num_experts) +
                  padded_bytes<int32_t>(args.rows * args.top_k)) {
        if (buffer_.failed()) return;
        Parts parts(buffer_.at(0));
        int32_t* const starts = parts.take<int32_t>(args.num_experts + 1);
        int32_t* const next = parts.take<int32_t>(args.num_experts + 1);
        active_ = parts.take<int32_t>(args.num_experts);
        pairs_ = parts.take<int32_t>(args.rows * args.top_k);
        starts_ = starts;
        const long pairs = args.rows * args.top_k;
        for (int e = 0; e <= args.num_experts; ++e) starts[e] = 0;
        const auto expert_of = [&](long pair) { return args.ids[pair] - args.first_expert; };
        const auto is_here = [&](int expert) { return expert >= 0 && expert < args.num_experts; };
        for (long pair = 0; pair < pairs; ++pair)
            if (is_here(expert_of(pair))) ++starts[expert_of(pair) + 1];
        for (int e = 0; e < args.num_experts; ++e) {
            if (starts[e + 1] > 0) active_[num_active_++] = e;
            starts[e + 1] += starts[e];
            next[e] = starts[e];
        }
        for (long pair = 0; pair < pairs; ++pair)
            if (is_here(expert_of(pair))) pairs_[next[expert_of(pair)]++] = static_cast<int32_t>(pair);
        count_ = starts[args.num_experts];
    }

    bool failed() const { return buffer_.failed(); }
    // All pairs.
    long count() const { return count_; }
    int num_active() const { return num_active_; }
    int active(int index) const { return active_[index]; }
    // Places of an expert's rows among all gathered rows.
    long start(int expert) const { return starts_[expert]; }
    long count(int expert) const { return starts_[expert + 1] - starts_[expert]; }
    // The pair at a place: row · k + the row's place.
    long pair(long place) const { return pairs_[place]; }

private:
    Buffer buffer_;
    const int32_t* starts_ = nullptr;
    int32_t *active_ = nullptr, *pairs_ = nullptr;
    int num_active_ = 0;
    long count_ = 0;
};

// Units of work, numbered active expert by active expert.
class ExpertUnits {
public:
    struct Place {
        int expert;
        long unit;
    };

    // count(expert): an expert's units.
    template <class Count>
    ExpertUnits(const ExpertRows& rows, const Count& count) : rows_(rows), ends_(padded_bytes<long>(rows.num_active())) {
        if (ends_.failed()) return;
        for (int i = 0; i < rows.num_active(); ++i) ends()[i] = total_ += count(rows.active(i));
    }

    bool failed() const { return ends_.failed(); }
    long count() const { return total_; }

    Place find(long number) const {
        int low = 0, high = rows_.num_active() - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (number < ends()[middle])
                high = middle;
            else
                low = middle + 1;
        }
        return {rows_.active(low), low == 0 ? number : number - ends()[low - 1]};
    }

private:
    long* ends() const { return reinterpret_cast<long*>(ends_.at(0)); }

    const ExpertRows& rows_;
    const Buffer ends_;  // by active expert: the end of its units
    long total_ = 0;
};

// The factors of a pair's inputs, applied to their products, and of its outputs.
inline float input_weight(const RinglineExperts& args, long pair) { return args.weighs_inputs ? args.weights[pair] : 1.0f; }
inline float output_weight(const RinglineExperts& args, long pair) { return args.weighs_inputs ? 1.0f : args.weights[pair]; }

inline Vec least_of(Vec a, Vec b) { return subtract(splat(0.0f), maximum_of(subtract(splat(0.0f), a), subtract(splat(0.0f), b))); }

inline Vec gated(const RinglineExperts& args, Vec gate, Vec up) {
    switch (args.activation) {
        case kRinglineSilu: return multiply(Silu::of(gate), up);
        case kRinglineGelu: return multiply(Gelu::of(gate), up);
        case kRinglineGeluTanh: return multiply(GeluTanh::of(gate), up);
        case kRinglineRelu: return multiply(Relu::of(gate), up);
        case kRinglineRelu2: return multiply(Relu2::of(gate), up);
        default: {
            const Vec limit = splat(args.limit), g = least_of(limit, gate);
            const Vec u = least_of(limit, maximum_of(splat(-args.limit), up));
            return multiply(add(u, splat(1.0f)), times_sigmoid(g, multiply(g, splat(args.alpha))));
        }
    }
}

// The numbers of I in `outputs` of gate and up, whose halves are one's and the other's; or of up alone.
inline int inner_of(const RinglineExperts& args, int outputs) { return args.gated ? outputs / 2 : outputs; }

template <class F>
void sum_experts(const RinglineExperts& args) {
    using Element = typename F::Element;
    const long width = args.hidden_part;
    const int threads = threads_worth(args.rows * args.top_k * width / kSummedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, 1, [&](long row) {
        const Element* const outputs = static_cast<const Element*>(args.outputs) + row * args.top_k * width;
        const Element* const residual =
            args.residual ? static_cast<const Element*>(args.residual) + row * args.residual_stride : nullptr;
        Element* const to = static_cast<Element*>(args.output) + row * width;
        for (long i = 0; i < width; i += kLanes) {
            Vec y = F::widen(outputs + i);
            for (int place = 1; place < args.top_k; ++place) y = add(y, F::widen(outputs + place * width + i));
            F::narrow(to + i, residual ? add(y, F::widen(residual + i)) : y);
        }
    });
}

}  // namespace
