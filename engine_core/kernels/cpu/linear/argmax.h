// The argmax of each row of a product: greedy sequences' next tokens, without logits in memory.
#pragma once

#include "linear/linear.h"

namespace {

// A result and its index. NaN counts as greater than any number; the first of equals wins.
struct Place {
    float value;
    int64_t output;

    bool precedes(const Place& other) const {
        const bool nan = value != value, other_nan = other.value != other.value;
        if (nan != other_nan) return nan;
        return value > other.value || ((nan || value == other.value) && output < other.output);
    }
};

constexpr float kLowest = -__FLT_MAX__;

// Tracks each row's greatest result, and greatest allowed result, per thread.
class GreatestOutputs {
public:
    GreatestOutputs(const RinglineLinear& args, int threads)
        : args_(args), threads_(threads), stride_(padded_bytes<Place>(args.rows)),
          places_((args.allowed ? 2 : 1) * threads * stride_) {
        for (int kind = 0; !failed() && kind < (args.allowed ? 2 : 1); ++kind)
            for (int thread = 0; thread < threads; ++thread)
                for (long row = 0; row < args.rows; ++row) of(thread, kind)[row] = {-__builtin_inff(), 0};
    }

    bool failed() const { return places_.failed(); }

    // Tiles come in ascending order to each thread.
    void take(int thread, long row, long first, const float* sums) {
        const long left = args_.out_features - first;
        if (args_.allowed) take_allowed(of(thread, 1)[row], row, first, left, sums);
        Place& greatest = of(thread, 0)[row];
        if (left >= kTileOutputs && !any_greater(sums, greatest.value)) return;
        for (long i = 0; i < kTileOutputs && i < left; ++i) {
            const Place place{sums[i], first + i};
            if (place.precedes(greatest)) greatest = place;
        }
    }

    // Write each row's greatest allowed output, and the greatest value of all outputs.
    void put() {
        for (long row = 0; row < args_.rows; ++row) {
            static_cast<int64_t*>(args_.output)[row] = first_of_threads(row, args_.allowed ? 1 : 0).output;
            if (args_.greatest) args_.greatest[row] = first_of_threads(row, 0).value;
        }
    }

private:
    // `kind`: 0: all outputs, 1: allowed ones.
    Place* of(int thread, int kind) const {
        return reinterpret_cast<Place*>(places_.at((kind * threads_ + thread) * stride_));
    }

    Place first_of_threads(long row, int kind) const {
        Place first = of(0, kind)[row];
        for (int thread = 1; thread < threads_; ++thread)
            if (of(thread, kind)[row].precedes(first)) first = of(thread, kind)[row];
        return first;
    }

    // Allowed results count as at least kLowest, so that they precede the initial −∞.
    void take_allowed(Place& greatest, long row, long first, long left, const float* sums) {
        const long words = (args_.out_features + 31) / 32;
        const uint32_t* const allowed = args_.allowed + row * words + first / 32;
        const uint64_t bits = allowed[0] | (left > 32 ? static_cast<uint64_t>(allowed[1]) << 32 : 0);
        if (!bits) return;
        if (left >= kTileOutputs && greatest.value >= kLowest && !any_greater(sums, greatest.value)) return;
        for (long i = 0; i < kTileOutputs && i < left; ++i) {
            if (!(bits >> i & 1)) continue;
            const Place place{sums[i] < kLowest ? kLowest : sums[i], first + i};
            if (place.precedes(greatest)) greatest = place;
        }
    }

    // Whether any of a tile's results is greater, or NaN.
    static bool any_greater(const float* sums, float value) {
        bool any = false;
        for (int i = 0; i < kTileOutputs; i += kLanes) any |= any_not_up_to(load(sums + i), splat(value));
        return any;
    }

    const RinglineLinear& args_;
    int threads_;
    long stride_;  // bytes
    Buffer places_;
};

template <class F, class Products = TileProducts<F>>
int greatest_of_linear(const RinglineLinear& args) {
    GreatestOutputs outputs(args, args.num_threads);
    if (outputs.failed() || Linear<F, GreatestOutputs, Products>(args, outputs).run() != 0) return 1;
    outputs.put();
    return 0;
}

inline int argmax(const RinglineLinear& args) {
    return with_number_type(args.number_type, [&](auto number) { return greatest_of_linear<decltype(number)>(args); });
}

}  // namespace
