// Experts: feed-forward blocks, gated or not, of which each row goes through a few (Shazeer et al., 2017,
// https://arxiv.org/abs/1701.06538).
//
// Rows are gathered by expert and multiplied as in linear/linear.h; experts without rows cost nothing. Numbers are rounded
// to their type after the activation, and after an expert's output is multiplied by its weight. A row's outputs are then
// summed in the order of its experts, the residual last, and rounded once. So a row's result depends neither on the rest
// of the step nor on which thread, or machine, computed an expert's output.
#pragma once

#include "experts/expert_adapters.h"
#include "linear/linear.h"

namespace {

inline long gate_up_tiles(const RinglineExperts& args) {
    const int inner = inner_of(args, kTileOutputs);
    return (args.inner_part + inner - 1) / inner;
}
inline long down_tiles(const RinglineExperts& args) { return (args.hidden_part + kTileOutputs - 1) / kTileOutputs; }

// One of the two products, for all experts, by `Products`. Experts' tiles follow each other.
template <class F, class Products>
class ExpertProducts {
    using Factor = typename F::Factor;

public:
    using ExpertUnit = Unit<F, typename Products::Tile>;

    ExpertProducts(const ExpertRows& rows, const Products& products, const void* x, long inputs, long tiles, int tile_outputs)
        : products_(products),
          rows_(rows),
          x_(static_cast<const Factor*>(x)),
          inputs_(inputs),
          tiles_(tiles),
          tile_outputs_(tile_outputs),
          units_(rows, [&](int expert) { return tiles * row_groups(rows.count(expert)); }) {}

    bool failed() const { return units_.failed(); }
    const Products& products() const { return products_; }
    long units() const { return units_.count(); }

    ExpertUnit unit(long number) const {
        const auto [expert, place] = units_.find(number);
        const long count = rows_.count(expert), groups = row_groups(count), group = place % groups, tile = place / groups;
        const long first = rows_.start(expert) + group_start(count, group);
        const long end = rows_.start(expert) + group_start(count, group + 1);
        return {products_.tile(expert * tiles_ + tile), x_ + first * inputs_, first, end - first, tile * tile_outputs_, expert};
    }

private:
    const Products& products_;
    const ExpertRows& rows_;
    const Factor* const x_;
    const long inputs_, tiles_;
    const int tile_outputs_;
    const ExpertUnits units_;
};

// The first product, gate and up or up alone, then the activation.
template <class F, class Products>
struct GateUp : ExpertProducts<F, Products> {
    using typename ExpertProducts<F, Products>::ExpertUnit;
    const RinglineExperts& args;
    const ExpertRows& rows;
    const ExpertAdapters<F>& adapters;
    const int tile_inner;
    const typename Products::Tile* then;  // tile to read ahead at the end; null: none

    GateUp(const RinglineExperts& args, const ExpertRows& rows, const ExpertAdapters<F>& adapters, const Products& products,
           const void* x, const typename Products::Tile* then = nullptr)
        : ExpertProducts<F, Products>(rows, products, x, args.hidden, gate_up_tiles(args),
                                      inner_of(args, kTileOutputs)),
          args(args),
          rows(rows),
          adapters(adapters),
          tile_inner(inner_of(args, kTileOutputs)),
          then(then) {}

    typename Products::Tile after_all(const ExpertUnit& unit) const { return then ? *then : unit.tile; }

    void take(int, const ExpertUnit& unit, long place, float* sums) const {
        const long left = args.inner_part - unit.output, count = left < tile_inner ? left : tile_inner;
        if (adapters.any()) {
            adapters.add(place, unit.output, count, sums);
            if (args.gated) adapters.add(place, args.inner_part + unit.output, count, sums + tile_inner);
        }
        if (args.weighs_inputs) {
            const Vec weight = splat(input_weight(args, rows.pair(place)));
            for (int i = 0; i < kTileOutputs; i += kLanes) store(sums + i, multiply(load(sums + i), weight));
        }
        if (args.gate_up_bias) {
            const long tile = unit.group * gate_up_tiles(args) + unit.output / tile_inner;
            const float* const bias = args.gate_up_bias + tile * kTileOutputs;
            for (int i = 0; i < kTileOutputs; i += kLanes) store(sums + i, add(load(sums + i), load(bias + i)));
        }
        typename F::Element rounded[kTileOutputs];
        for (long i = 0; i < count; i += kLanes) {
            const Vec up = args.gated ? load(sums + tile_inner + i) : splat(1.0f);
            F::narrow(rounded + i, gated(args, load(sums + i), up));
        }
        F::load_factors(static_cast<typename F::Factor*>(args.activated) + place * args.inner_part + unit.output, rounded, count);
    }
};

// The second product, times the weights, written to each pair's place.
template <class F, class Products>
struct Down : ExpertProducts<F, Products> {
    using typename ExpertProducts<F, Products>::ExpertUnit;
    const RinglineExperts& args;
    const ExpertRows& rows;
    const ExpertAdapters<F>& adapters;

    Down(const RinglineExperts& args, const ExpertRows& rows, const ExpertAdapters<F>& adapters, const Products& products,
         const void* x)
        : ExpertProducts<F, Products>(rows, products, x, args.inner, down_tiles(args), kTileOutputs),
          args(args),
          rows(rows),
          adapters(adapters) {}

    typename Products::Tile after_all(const ExpertUnit& unit) const { return unit.tile; }

    void take(int, const ExpertUnit& unit, long place, float* sums) const {
        const long pair = rows.pair(place), left = args.hidden_part - unit.output;
        const long count = left < kTileOutputs ? left : kTileOutputs;
        if (adapters.any()) adapters.add(place, unit.output, count, sums);
        const long padded = down_tiles(args) * kTileOutputs;
        const float* const bias = args.down_bias ? args.down_bias + unit.group * padded + unit.output : nullptr;
        auto* const to = static_cast<typename F::Element*>(args.outputs) + pair * args.hidden_part + unit.output;
        const Vec weight = splat(output_weight(args, pair));
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

inline int threads_of_experts(const RinglineExperts& args, const ExpertRows& rows) {
    return threads_of_products(rows.count(), products_of_pair(args), args.num_threads);
}

// Weights in the model's type. Returns 0, or 1 when there is no memory.
template <class F>
int multiply_experts(const RinglineExperts& args, const ExpertRows& rows) {
    const TileProducts<F> by_gate_up(args.gate_up, args.hidden, args.hidden), by_down(args.down, args.inner, args.inner);
    const typename TileProducts<F>::Tile first_of_down = by_down.tile(rows.active(0) * down_tiles(args));
    const int threads = threads_of_experts(args, rows);
    if (args.phases & kRinglineGateUp) {
        const ExpertAdapters<F> adapters(args, rows, kExpanding);
        const GateUp<F, TileProducts<F>> gate_up(args, rows, adapters, by_gate_up, args.gathered, &first_of_down);
        if (gate_up.failed() || adapters.failed()) return 1;
        gather_rows_of_experts<F>(args, rows);
        adapters.shrink(args.gathered, args.num_threads);
        multiply_tiles(by_gate_up, threads, gate_up);
    }
    if (!(args.phases & kRinglineDown)) return 0;
    const ExpertAdapters<F> adapters(args, rows, kReducing);
    const Down<F, TileProducts<F>> down(args, rows, adapters, by_down, args.activated);
    if (down.failed() || adapters.failed()) return 1;
    adapters.shrink(args.activated, args.num_threads);
    multiply_tiles(by_down, threads, down);
    return 0;
}

// Runs a call's phases; multiply(rows) computes the products, if any row has an expert of this rank.
template <class F, class Multiply>
int run_experts(const RinglineExperts& args, const Multiply& multiply) {
    if (args.rows == 0) return 0;
    if (args.phases & (kRinglineGateUp | kRinglineDown)) {
        const ExpertRows rows(args);
        if (rows.failed()) return 1;
        if (rows.count() > 0 && multiply(rows) != 0) return 1;
    }
    if (args.phases & kRinglineSum) sum_experts<F>(args);
    return 0;
}

inline int experts(const RinglineExperts& args) {
    return with_number_type(args.number_type, [&](auto number) {
        using F = decltype(number);
        return run_experts<F>(args, [&](const ExpertRows& rows) { return multiply_experts<F>(args, rows); });
    });
}

}  // namespace
