// Experts: gated feed-forward blocks, of which each row goes through a few (Shazeer et al., 2017,
// https://arxiv.org/abs/1701.06538).
//
// Rows are gathered by expert and multiplied as in linear.h; an expert that no row goes through costs nothing. Numbers are
// rounded to their type after the activation, and after each expert's output is multiplied by its weight. A row's outputs
// are then summed in the order in which its experts are listed, with the residual last, and rounded once. So a row's
// result depends neither on what else is in a step nor on which thread, or which machine, computed an expert's output.
#pragma once

#include "expert_rows.h"
#include "linear.h"

namespace {

constexpr int kTileInner = kTileOutputs / 2;  // numbers of I of a tile of gate and up

// One of the two products of all experts.
template <class F>
class ExpertProducts {
    using Element = typename F::Element;
    using Factor = typename F::Factor;

public:
    ExpertProducts(const ExpertRows& rows, const void* weight, const void* x, long inputs, long tiles, int tile_outputs)
        : products_(inputs, inputs),
          rows_(rows),
          weight_(static_cast<const Element*>(weight)),
          x_(static_cast<const Factor*>(x)),
          inputs_(inputs),
          tiles_(tiles),
          tile_outputs_(tile_outputs),
          units_(rows, [&](int expert) { return tiles * row_groups(rows.count(expert)); }) {}

    bool failed() const { return units_.failed(); }
    const TileProducts<F>& products() const { return products_; }
    const Element* first_tile() const { return tile(rows_.active(0), 0); }
    long units() const { return units_.count(); }

    Unit<F> unit(long number) const {
        const auto [expert, place] = units_.find(number);
        const long count = rows_.count(expert), groups = row_groups(count), group = place % groups, number_of_tile = place / groups;
        const long first = rows_.start(expert) + group_start(count, group);
        const long end = rows_.start(expert) + group_start(count, group + 1);
        return {tile(expert, number_of_tile), x_ + first * inputs_, first, end - first, number_of_tile * tile_outputs_, expert};
    }

private:
    const Element* tile(int expert, long number) const {
        return weight_ + (expert * tiles_ + number) * products_.tile_elements();
    }

    const TileProducts<F> products_;
    const ExpertRows& rows_;
    const Element* const weight_;
    const Factor* const x_;
    const long inputs_, tiles_;
    const int tile_outputs_;
    const ExpertUnits units_;
};

// The first product, gate and up, and then the activation.
template <class F>
struct GateUp : ExpertProducts<F> {
    const RinglineExperts& args;
    const typename F::Element* then;  // what is read ahead at the end

    GateUp(const RinglineExperts& args, const ExpertRows& rows, const typename F::Element* then)
        : ExpertProducts<F>(rows, args.gate_up, args.gathered, args.hidden, (args.inner_part + kTileInner - 1) / kTileInner,
                            kTileInner),
          args(args),
          then(then) {}

    const typename F::Element* after_all(const Unit<F>&) const { return then; }

    void take(int, const Unit<F>& unit, long place, float* sums) const {
        const long tiles = (args.inner_part + kTileInner - 1) / kTileInner;
        if (args.gate_up_bias) {
            const float* const bias = args.gate_up_bias + (unit.group * tiles + unit.output / kTileInner) * kTileOutputs;
            for (int i = 0; i < kTileOutputs; i += kLanes) store(sums + i, add(load(sums + i), load(bias + i)));
        }
        const long left = args.inner_part - unit.output, count = left < kTileInner ? left : kTileInner;
        typename F::Element rounded[kTileInner];
        for (long i = 0; i < count; i += kLanes) F::narrow(rounded + i, gated(args, load(sums + i), load(sums + kTileInner + i)));
        F::load_factors(static_cast<typename F::Factor*>(args.activated) + place * args.inner_part + unit.output, rounded, count);
    }
};

// The second product, times the weights: to the place of each pair of a row and an expert.
template <class F>
struct Down : ExpertProducts<F> {
    const RinglineExperts& args;
    const ExpertRows& rows;

    Down(const RinglineExperts& args, const ExpertRows& rows)
        : ExpertProducts<F>(rows, args.down, args.activated, args.inner, (args.hidden_part + kTileOutputs - 1) / kTileOutputs,
                            kTileOutputs),
          args(args),
          rows(rows) {}

    const typename F::Element* after_all(const Unit<F>& unit) const { return unit.tile; }

    void take(int, const Unit<F>& unit, long place, float* sums) const {
        const long pair = rows.pair(place), left = args.hidden_part - unit.output;
        const long count = left < kTileOutputs ? left : kTileOutputs;
        const long padded = (args.hidden_part + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
        const float* const bias = args.down_bias ? args.down_bias + unit.group * padded + unit.output : nullptr;
        auto* const to = static_cast<typename F::Element*>(args.outputs) + pair * args.hidden_part + unit.output;
        const Vec weight = splat(args.weights[pair]);
        for (long i = 0; i < count; i += kLanes) {
            const Vec y = bias ? add(load(sums + i), load(bias + i)) : load(sums + i);
            F::narrow(to + i, multiply(y, weight));
        }
    }
};

template <class F>
void gather_rows_of_experts(const RinglineExperts& args, const ExpertRows& rows) {
    auto* const to = static_cast<typename F::Factor*>(args.gathered);
    const auto* const x = static_cast<const typename F::Element*>(args.x);
    const int threads = threads_worth(rows.count() * args.hidden / kSummedPerNanosecond, args.num_threads);
    parallel_for(threads, rows.count(), 8, [&](long place) {
        F::load_factors(to + place * args.hidden, x + rows.pair(place) / args.top_k * args.hidden, args.hidden);
    });
}

// Returns 0, or 1 when there is no memory.
template <class F>
int multiply_experts(const RinglineExperts& args) {
    const ExpertRows rows(args);
    if (rows.failed()) return 1;
    if (rows.count() == 0) return 0;
    const Down<F> down(args, rows);
    const GateUp<F> gate_up(args, rows, down.failed() ? nullptr : down.first_tile());
    if (down.failed() || gate_up.failed()) return 1;
    const int threads = threads_of_products(rows.count(), products_of_pair(args), args.num_threads);
    if (args.phases & kRinglineGateUp) {
        gather_rows_of_experts<F>(args, rows);
        multiply_tiles(gate_up.products(), threads, gate_up);
    }
    if (args.phases & kRinglineDown) multiply_tiles(down.products(), threads, down);
    return 0;
}

template <class F>
int run_experts(const RinglineExperts& args) {
    if (args.rows == 0) return 0;
    if (args.phases & (kRinglineGateUp | kRinglineDown))
        if (multiply_experts<F>(args) != 0) return 1;
    if (args.phases & kRinglineSum) sum_experts<F>(args);
    return 0;
}

inline int experts(const RinglineExperts& args) {
    return with_number_type(args.number_type, [&](auto number) { return run_experts<decltype(number)>(args); });
}

}  // namespace
