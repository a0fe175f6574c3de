// Linear layers side by side, such as one per head. Every result is the chain of additions that linear/linear.h describes.
#pragma once

#include "linear/linear.h"

namespace {

template <class F>
class GroupedLinear {
    using Element = typename F::Element;

public:
    explicit GroupedLinear(const RinglineGroupedLinear& args)
        : args_(args),
          tiles_((args.out_features + kTileOutputs - 1) / kTileOutputs),
          threads_(threads_of_products(args.rows, args.groups * args.out_features * args.in_features, args.num_threads)),
          rows_(args.x, args.rows, (args.groups - 1) * args.x_group_stride + args.in_features, args.x_stride, threads_),
          products_(args.weight, args.in_features, rows_.stride()),
          row_groups_(row_groups(args.rows)) {}

    // Returns 0, or 1 when there is no memory.
    int run() {
        if (rows_.failed()) return 1;
        multiply_tiles(products_, threads_, *this);
        return 0;
    }

    long units() const { return args_.groups * tiles_ * row_groups_; }
    Unit<F> unit(long number) const {
        const long tile = number / row_groups_, part = number % row_groups_, first = group_start(args_.rows, part);
        const long group = tile / tiles_;
        return {products_.tile(tile), rows_.row(first) + group * args_.x_group_stride, first, group_start(args_.rows, part + 1) - first,
                tile % tiles_ * kTileOutputs, group};
    }
    const Element* after_all(const Unit<F>& unit) const { return unit.tile; }

    void take(int, const Unit<F>& unit, long row, const float* sums) const {
        const long left = args_.out_features - unit.output, count = left < kTileOutputs ? left : kTileOutputs;
        auto* const to = static_cast<Element*>(args_.output) + (row * args_.groups + unit.group) * args_.out_features + unit.output;
        for (long i = 0; i < count; i += kLanes) F::narrow(to + i, load(sums + i));
    }

private:
    const RinglineGroupedLinear& args_;
    const long tiles_;  // of a group
    const int threads_;
    const FactorRows<F> rows_;
    const TileProducts<F> products_;
    const long row_groups_;
};

inline int grouped_linear(const RinglineGroupedLinear& args) {
    return with_number_type(args.number_type, [&](auto number) { return GroupedLinear<decltype(number)>(args).run(); });
}

}  // namespace
