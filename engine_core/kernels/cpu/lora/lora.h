// What adapters add to rows (LoRA): y += scale · (scales · (x · Aᵀ)) · Bᵀ, with each row's own A and B.
//
// In the first phase rows *shrink* to some numbers, the ranks of A; in the second these *expand* to outputs, and are added
// to what is there. A and B are packed in panels like other weights (linear/linear.h), B apart for each *span*: neighbouring
// outputs that have the same ranks. Every result is one chain of additions in ascending order, over inputs, then over the
// ranks of its own span: a row's bits depend on its own adapter alone, and outputs that no span has are not written.
#pragma once

#include "lora/panel_sums.h"
#include "lora/units.h"

namespace {

// Before them: inputs become factors.
template <class F>
class Gather {
public:
    static constexpr int kMostRows = 16;

    // `x`: as for Shrink.
    Gather(const RinglineLora& args, typename F::Factor* x) : args_(args), x_(x) {}

    static long parts(const RinglineLoraLayer&) { return 1; }
    const void* memory(const LoraUnit&) const { return args_.x; }
    const void* after_all() const { return args_.x; }

    void compute(const LoraUnit& unit, const void*) const {
        const long width = args_.in_features;
        for (long row = unit.first; row < unit.first + unit.rows; ++row)
            F::load_factors(x_ + ((unit.adapter->place + row) * args_.groups + unit.group) * width,
                            static_cast<const typename F::Element*>(args_.x) + unit.adapter->rows[row] * args_.x_stride + unit.group * args_.x_group_stride,
                            width);
    }

private:
    const RinglineLora& args_;
    typename F::Factor* const x_;
};

// The first phase: a unit is a block of rows by a panel of ranks.
template <class F>
class Shrink {
    using Element = typename F::Element;
    using Factor = typename F::Factor;

public:
    static constexpr int kMostRows = lora_rows<F>();

    // `x`, `inner`: [rows, groups, inputs, or `ranks`], of rows that have adapters, in the list's order.
    Shrink(const RinglineLora& args, const AdapterList& adapters, const Factor* x, Factor* inner)
        : inputs_(args.in_features), groups_(args.groups), ranks_(adapters.ranks()), x_(x), inner_(inner), after_(adapters[0].layer->spans[0].b) {}

    static long parts(const RinglineLoraLayer& layer) { return layer.ranks / kPanel; }
    const void* memory(const LoraUnit& unit) const {
        const RinglineLoraLayer& layer = *unit.adapter->layer;
        return static_cast<const Element*>(layer.a) + unit.group * layer.a_group_stride + unit.part * kPanel * inputs_;
    }
    const void* after_all() const { return after_; }

    void compute(const LoraUnit& unit, const void* following) const {
        const long place = (unit.adapter->place + unit.first) * groups_ + unit.group, rank = unit.part * kPanel;
        with_constant<kMostRows>(unit.rows, [&](auto rows) {
            add_inputs<rows.value>(x_ + place * inputs_, static_cast<const Element*>(memory(unit)), unit.adapter->layer->scales + rank,
                                   following, inner_ + place * ranks_ + rank);
        });
    }

private:
    template <int Rows>
    __attribute__((noinline)) void add_inputs(
        const Factor* x, const Element* panel, const float* scales, const void* following, Factor* inner) const {
        const long stride = groups_ * inputs_;
        PanelSums<F, Rows> sums;
        sums.block.clear();
        LoraAhead ahead(panel, inputs_ * kPanel * static_cast<long>(sizeof(Element)), following);
        for (const Factor* const end = x + inputs_; x < end; x += kPanel, panel += kPanel * kPanel) {
            ahead.pass(kPanel * kPanel * sizeof(Element));
            sums.add(x, stride, panel, kPanel / F::kPack);
        }
        for (int r = 0; r < Rows; ++r)
            for (int c = 0; c < kPanel / kLanes; ++c)
                F::store_factors(inner + r * groups_ * ranks_ + c * kLanes,
                                 multiply(sums.block.sums[r][c], load(scales + c * kLanes)));
    }

    const long inputs_, groups_, ranks_;
    const Factor* const x_;
    Factor* const inner_;
    const void* const after_;
};

// The second phase: a unit is a block of rows by some panels of outputs.
template <class F>
class Expand {
    using Element = typename F::Element;
    using Factor = typename F::Factor;

public:
    static constexpr int kMostRows = lora_rows<F>();

    Expand(const RinglineLora& args, const AdapterList& adapters, const Factor* inner)
        : args_(args), ranks_(adapters.ranks()), inner_(inner) {}

    static long parts(const RinglineLoraLayer& layer) { return (layer.panels + kTogether - 1) / kTogether; }
    const void* memory(const LoraUnit& unit) const {
        const RinglineLoraSpan& span = *span_of(unit);
        return panel_of(span, unit.group, unit.part * kTogether);
    }
    const void* after_all() const { return inner_; }

    void compute(const LoraUnit& unit, const void* following) const {
        const RinglineLoraLayer& layer = *unit.adapter->layer;
        const RinglineLoraSpan* span = span_of(unit);
        const long end = (unit.part + 1) * kTogether < layer.panels ? (unit.part + 1) * kTogether : layer.panels;
        for (long panel = unit.part * kTogether; panel < end; ++span) {
            const long until = span->panels_end < end ? span->panels_end : end;
            with_constant<kMostRows>(unit.rows, [&](auto rows) {
                const void* const then = until == end ? following : (span + 1)->b;
                if (args_.wide)
                    add_ranks<Float32, rows.value>(unit, *span, panel, until, then);
                else
                    add_ranks<F, rows.value>(unit, *span, panel, until, then);
            });
            panel = until;
        }
    }

private:
    static constexpr long kTogether = 32;  // panels

    static long first_panel(const RinglineLoraSpan& span) { return span.panels_end - (span.columns + kPanel - 1) / kPanel; }
    static const RinglineLoraSpan* span_of(const LoraUnit& unit) {
        const RinglineLoraSpan* span = unit.adapter->layer->spans;
        while (span->panels_end <= unit.part * kTogether) ++span;
        return span;
    }
    static const Element* panel_of(const RinglineLoraSpan& span, long group, long panel) {
        return static_cast<const Element*>(span.b) + group * span.b_group_stride + (panel - first_panel(span)) * kPanel * span.ranks;
    }

    // Add the products with panels `first` … `end` − 1, of one span, to numbers of type Y.
    template <class Y, int Rows>
    __attribute__((noinline)) void add_ranks(
        const LoraUnit& unit, const RinglineLoraSpan& span, long first, long end, const void* following) const {
        const long place = (unit.adapter->place + unit.first) * args_.groups + unit.group;
        const long stride = args_.groups * ranks_, ranks = span.ranks, passed = (first - first_panel(span)) * kPanel;
        const Factor* const inner = inner_ + place * ranks_ + span.rank;
        const Element* b = panel_of(span, unit.group, first);
        typename Y::Element* y[Rows];
        for (int r = 0; r < Rows; ++r)
            y[r] = static_cast<typename Y::Element*>(args_.y) + unit.adapter->rows[unit.first + r] * args_.y_stride +
                   unit.group * args_.y_group_stride + span.column + passed;
        const Vec scale = splat(args_.scale);
        LoraAhead ahead(b, (end - first) * kPanel * ranks * static_cast<long>(sizeof(Element)), following);
        long left = span.columns - passed;
        for (long panel = first; panel < end; ++panel, left -= kPanel, b += kPanel * ranks) {
            ahead.pass(kPanel * ranks * sizeof(Element));
            PanelSums<F, Rows> sums;
            sums.block.clear();
            sums.add(inner, stride, b, ranks / F::kPack);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r, y[r - 1] += kPanel)
                if (left >= kPanel) {
                    add_to<Y>(y[r], sums.block.sums[r], scale);
                } else {
                    typename Y::Element some[kPanel] = {};  // others stay as they are, and other threads may write them
                    std::memcpy(some, y[r], left * sizeof *some);
                    add_to<Y>(some, sums.block.sums[r], scale);
                    std::memcpy(y[r], some, left * sizeof *some);
                }
        }
    }

    template <class Y>
    static inline __attribute__((always_inline)) void add_to(
        typename Y::Element* y, const Vec (&sums)[kPanel / kLanes], Vec scale) {
#pragma GCC unroll 8
        for (int c = 0; c < kPanel / kLanes; ++c)
            Y::narrow(y + c * kLanes, add(Y::widen(y + c * kLanes), multiply(sums[c], scale)));
    }

    const RinglineLora& args_;
    const long ranks_;
    const Factor* const inner_;
};

// Returns 0, or 1 when there is no memory.
template <class F>
int lora_of(const RinglineLora& args, const AdapterList& adapters) {
    using Factor = typename F::Factor;
    const long width = args.groups * args.in_features;
    const Buffer buffer(padded_bytes<Factor>(adapters.rows() * width) + padded_bytes<Factor>(adapters.rows() * args.groups * adapters.ranks()));
    if (buffer.failed()) return 1;
    Parts parts(buffer.at(0));
    Factor* const x = parts.take<Factor>(adapters.rows() * width);
    Factor* const inner = parts.take<Factor>(adapters.rows() * args.groups * adapters.ranks());
    const int threads = threads_worth(args.groups * adapters.products() / kProductsPerNanosecond, args.num_threads);
    adapters.compute(threads_worth(adapters.rows() * width / kConvertedPerNanosecond, threads), Gather<F>(args, x));
    adapters.compute(threads, Shrink<F>(args, adapters, x, inner));
    adapters.compute(threads, Expand<F>(args, adapters, inner));
    return 0;
}

inline int lora(const RinglineLora& args) {
    if (args.step->num_adapters == 0) return 0;
    const AdapterList adapters(args);
    if (adapters.failed()) return 1;
    if (adapters.rows() == 0) return 0;
    return with_number_type(args.number_type, [&](auto number) { return lora_of<decltype(number)>(args, adapters); });
}

}  // namespace
