// The rows of a call that have adapters, cut into units of work.
#pragma once

#include "linear/linear.h"

namespace {

// An adapter that touches the layer, and the rows that have it.
struct AdaptedRows {
    const RinglineLoraLayer* layer;
    const int32_t* rows;  // their numbers, ascending
    long count;
    long place;  // of the first among all rows that have adapters
    long end;    // the units of this adapter, and of those before it
};

// A unit: a block of one adapter's rows, by some of what is computed of each.
struct LoraUnit {
    const AdaptedRows* adapter;
    long group;  // of the layer
    long part;   // panel of ranks, or panels of outputs
    long first;  // row, among the adapter's
    int rows;
};

// The adapters of a call.
class AdapterList {
public:
    explicit AdapterList(const RinglineLora& args)
        : groups_(args.groups), memory_(args.step->num_adapters * static_cast<long>(sizeof(AdaptedRows))) {
        if (failed()) return;
        const RinglineLoraStep& step = *args.step;
        const bool all = args.rows == step.num_rows;
        const int32_t *const starts = all ? step.starts : step.wanted_starts, *const rows = all ? step.rows : step.wanted_rows;
        for (int i = 0; i < step.num_adapters; ++i) {
            const RinglineLoraLayer* const layer = step.adapters[i] + args.layer;
            const long count = starts[i + 1] - starts[i];
            if (count == 0 || layer->ranks == 0) continue;
            list()[size_++] = {layer, rows + starts[i], count, rows_, 0};
            rows_ += count;
            if (layer->ranks > ranks_) ranks_ = layer->ranks;
            // Of few rows, reading the weights takes longer than multiplying by them.
            products_ += (count < kRowsPerRead ? kRowsPerRead : count) * layer->products;
        }
    }

    bool failed() const { return memory_.failed(); }
    long size() const { return size_; }
    const AdaptedRows& operator[](long i) const { return list()[i]; }
    long rows() const { return rows_; }          // that have adapters
    long ranks() const { return ranks_; }        // of the adapter with most
    long products() const { return products_; }  // as many as take as long

    // Compute a phase on some threads: phase.compute(unit, following) for each unit, with the memory that the next one
    // reads. A unit has at most Phase::kMostRows rows.
    template <class Phase>
    void compute(int threads, const Phase& phase) const {
        long count = 0, next = 0;
        for (long i = 0; i < size_; ++i) {
            count += blocks<Phase>(list()[i]).count * phase.parts(*list()[i].layer) * groups_;
            list()[i].end = count;
        }
        in_parallel(threads, [&](int) {
            const AdaptedRows* adapter = list();  // a thread's units ascend
            long number = take(next);
            if (number >= count) return;
            for (LoraUnit unit = unit_of(phase, number, adapter);;) {
                const long following = take(next);
                const LoraUnit then = following < count ? unit_of(phase, following, adapter) : unit;
                phase.compute(unit, following < count ? phase.memory(then) : phase.after_all());
                if (following >= count) return;
                unit = then;
            }
        });
    }

private:
    AdaptedRows* list() const { return reinterpret_cast<AdaptedRows*>(memory_.at(0)); }

    template <class Phase>
    static RowBlocks blocks(const AdaptedRows& adapter) {
        return RowBlocks(adapter.count, Phase::kMostRows);
    }

    // Neighbouring units read the same weights. `adapter`: that of an earlier unit; becomes this one's.
    template <class Phase>
    LoraUnit unit_of(const Phase& phase, long number, const AdaptedRows*& adapter) const {
        while (number >= adapter->end) ++adapter;
        const RowBlocks of_rows = blocks<Phase>(*adapter);
        const long parts = phase.parts(*adapter->layer);
        const long place = number - (adapter->end - of_rows.count * parts * groups_);
        const long block = place % of_rows.count, part = place / of_rows.count;
        return {adapter, part / parts, part % parts, of_rows.start(block), of_rows.size(block)};
    }

    const long groups_;
    const Buffer memory_;
    long size_ = 0, rows_ = 0, ranks_ = 0, products_ = 0;
};

}  // namespace
