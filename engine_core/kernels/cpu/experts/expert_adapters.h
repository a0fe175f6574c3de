// What adapters add to the products of experts (LoRA): y += (scales · (x · Aᵀ)) · Bᵀ, before biases, weights and activation.
//
// Pairs of a row and an expert whose row's adapter touches the expert *shrink* to some numbers before a product; those
// *expand* as the product's results are taken. Every number is one chain of additions in ascending order, over inputs, then
// over ranks (lora/lora.h): a pair's bits depend on its row's adapter alone, and other pairs' results stay as they are.
#pragma once

#include "experts/expert_rows.h"
#include "lora/panel_sums.h"

namespace {

// A product before or after the activation, as the offset of its layer's number.
enum ExpertProduct : int { kExpanding = 0, kReducing = 1 };

// The adapters of one of the two products, by the places of the experts' rows.
template <class F>
class ExpertAdapters {
    using Element = typename F::Element;
    using Factor = typename F::Factor;
    static constexpr int kMostRows = lora_rows<F>();

    // An adapter's weights for an expert.
    struct Weights {
        const RinglineLoraLayer* layer;  // null: there are none
        long group;
    };

    // Pairs at neighbouring places that have the same weights.
    struct Pairs {
        Weights weights;
        long first;
        int rows;
    };

public:
    // Without any, this costs nothing.
    ExpertAdapters(const RinglineExperts& args, const ExpertRows& rows, ExpertProduct product)
        : any_(args.adapters && args.adapters->num_adapters > 0),
          inputs_(product == kExpanding ? args.hidden : args.inner),
          lists_(any_ ? bytes_of_lists(args, rows) : 1),
          inner_(any_ && !lists_.failed() ? list(args, rows, product) : 1) {
        any_ = num_blocks_ > 0 || failed();
    }

    bool failed() const { return lists_.failed() || inner_.failed(); }
    // Whether any pair has weights.
    bool any() const { return any_; }

    // Shrink all pairs. `inputs`: [places, inputs] factors.
    void shrink(const void* inputs, int num_threads) const {
        if (!any_) return;
        shrink_all(num_threads, [&](int, const Pairs& block) { return static_cast<const Factor*>(inputs) + block.first * inputs_; });
    }

    // The same of inputs that are no factors: input(place) are numbers. Returns 0, or 1 when there is no memory.
    template <class Input>
    int shrink_numbers(const Input& input, int num_threads) const {
        if (!any_) return 0;
        const long bytes = padded_bytes<Factor>(kMostRows * inputs_);
        const Buffer converted(num_threads * bytes);
        if (converted.failed()) return 1;
        shrink_all(num_threads, [&](int thread, const Pairs& block) {
            auto* const to = reinterpret_cast<Factor*>(converted.at(thread * bytes));
            for (int r = 0; r < block.rows; ++r) F::load_factors(to + r * inputs_, input(block.first + r), inputs_);
            return static_cast<const Factor*>(to);
        });
        return 0;
    }

    // Add to `count` results of a pair, from the product's output `first` on; both are multiples of 16.
    __attribute__((noinline)) void add(long place, long first, long count, float* results) const {
        const auto [layer, group] = weights()[place];
        if (!layer) return;
        const Factor* const shrunk = shrunk_of(place);
        for (const RinglineLoraSpan* span = layer->spans;; ++span) {
            const long ranks = span->ranks, from = first - span->column;
            const auto* const b = static_cast<const Element*>(span->b) + group * span->b_group_stride;
            for (long i = from < 0 ? -from : 0; i < count && from + i < span->columns; i += kPanel) {
                PanelSums<F, 1> sums;
                sums.block.clear();
                sums.add(shrunk + span->rank, 0, b + (from + i) * ranks, ranks / F::kPack);
                for (int c = 0; c < kPanel / kLanes; ++c) {
                    float* const at = results + i + c * kLanes;
                    store(at, ::add(load(at), sums.block.sums[0][c]));
                }
            }
            if (span->panels_end == layer->panels) return;
        }
    }

private:
    static long bytes_of_lists(const RinglineExperts& args, const ExpertRows& rows) {
        return padded_bytes<const RinglineLoraLayer*>(args.rows) + padded_bytes<Weights>(rows.count()) + padded_bytes<Pairs>(rows.count());
    }

    Weights* weights() const { return reinterpret_cast<Weights*>(lists_.at(0)); }
    Factor* shrunk_of(long place) const { return reinterpret_cast<Factor*>(inner_.at(0)) + place * ranks_; }

    // List each place's weights, and the blocks. Returns the bytes of what the pairs shrink to.
    long list(const RinglineExperts& args, const ExpertRows& rows, ExpertProduct product) {
        Parts parts(lists_.at(0));
        Weights* const of_places = parts.take<Weights>(rows.count());
        blocks_ = parts.take<Pairs>(rows.count());
        const auto** const of_rows = parts.take<const RinglineLoraLayer*>(args.rows);
        const RinglineLoraStep& step = *args.adapters;
        const bool all = args.rows == step.num_rows;
        const int32_t *const starts = all ? step.starts : step.wanted_starts, *const numbers = all ? step.rows : step.wanted_rows;
        for (long row = 0; row < args.rows; ++row) of_rows[row] = nullptr;
        for (int i = 0; i < step.num_adapters; ++i) {
            const RinglineLoraLayer* const layer = step.adapters[i] + args.lora_layer + product;
            if (layer->ranks == 0) continue;
            if (layer->ranks > ranks_ && starts[i] < starts[i + 1]) ranks_ = layer->ranks;
            for (long at = starts[i]; at < starts[i + 1]; ++at) of_rows[numbers[at]] = layer;
        }
        for (int i = 0; i < rows.num_active(); ++i) {
            const int expert = rows.active(i);
            const long start = rows.start(expert), end = start + rows.count(expert);
            for (long place = start; place < end; ++place) {
                const RinglineLoraLayer* layer = of_rows[rows.pair(place) / args.top_k];
                const long group = layer ? layer->experts[expert] : -1;
                if (group < 0) layer = nullptr;
                of_places[place] = {layer, group};
                if (!layer) continue;
                products_ += layer->products;
                Pairs* const last = blocks_ + num_blocks_ - 1;
                const bool continues = num_blocks_ > 0 && last->weights.layer == layer && last->weights.group == group;
                if (continues && last->first + last->rows == place && last->rows < kMostRows)
                    ++last->rows;
                else
                    blocks_[num_blocks_++] = {{layer, group}, place, 1};
            }
        }
        return num_blocks_ > 0 ? rows.count() * ranks_ * static_cast<long>(sizeof(Factor)) : 1;
    }

    // inputs_of(thread, block): its rows as factors.
    template <class Inputs>
    void shrink_all(int num_threads, const Inputs& inputs_of) const {
        const int threads = threads_worth(products_ / kProductsPerNanosecond, num_threads);
        long next = 0;
        in_parallel(threads, [&](int thread) {
            for (long number = take(next); number < num_blocks_; number = take(next)) {
                const Pairs& block = blocks_[number];
                const Factor* const x = inputs_of(thread, block);
                with_constant<kMostRows>(block.rows, [&](auto rows) { shrink_block<rows.value>(block, x); });
            }
        });
    }

    template <int Rows>
    __attribute__((noinline)) void shrink_block(const Pairs& block, const Factor* x) const {
        const auto [layer, group] = block.weights;
        const auto* panel = static_cast<const Element*>(layer->a) + group * layer->a_group_stride;
        const float* const scales = layer->scales + group * layer->scales_group_stride;
        for (long rank = 0; rank < layer->ranks; rank += kPanel, panel += kPanel * inputs_) {
            PanelSums<F, Rows> sums;
            sums.block.clear();
            LoraAhead ahead(panel, inputs_ * kPanel * static_cast<long>(sizeof(Element)), nullptr);
            for (long input = 0; input < inputs_; input += kPanel) {
                ahead.pass(kPanel * kPanel * sizeof(Element));
                sums.add(x + input, inputs_, panel + input * kPanel, kPanel / F::kPack);
            }
            for (int r = 0; r < Rows; ++r)
                for (int c = 0; c < kPanel / kLanes; ++c)
                    F::store_factors(shrunk_of(block.first + r) + rank + c * kLanes,
                                     multiply(sums.block.sums[r][c], load(scales + rank + c * kLanes)));
        }
    }

    bool any_;
    const long inputs_;
    long ranks_ = 0, num_blocks_ = 0, products_ = 0;  // ranks of the adapter with most; products of all pairs
    Pairs* blocks_ = nullptr;
    const Buffer lists_;
    const Buffer inner_;  // [places, ranks]
};

}  // namespace
