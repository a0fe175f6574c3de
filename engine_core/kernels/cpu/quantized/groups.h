// Data of input groups, in float32: scales, zeros and minima, and the inputs' sums.
#pragma once

#include "linear/linear.h"
#include "quantized/pack.h"

namespace {

constexpr long kMostPartGroups = 64;

// A tile's numbers for some neighbouring groups: [groups, kTileOutputs].
struct GroupNumbers {
    alignas(kCacheLine) float scales[kMostPartGroups * kTileOutputs];
    alignas(kCacheLine) float negated_zeros[kMostPartGroups * kTileOutputs];
    alignas(kCacheLine) float minima[kMostPartGroups * kTileOutputs];
};

// Reads the numbers of a weight's packed groups.
class PackedGroups {
public:
    explicit PackedGroups(const RinglineQuantizedWeight& weight)
        : weight_(weight), groups_(groups_of(weight)), outer_groups_(outer_groups_of(weight)) {}

    long count() const { return groups_; }
    long size() const { return weight_.group_size; }
    bool has_zeros() const { return weight_.zeros != nullptr; }
    bool has_minima() const { return weight_.minima != nullptr; }

    void read(long first_panel, long first, long count, GroupNumbers& numbers) const {
        for (long i = 0; i < kTilePanels; ++i) {
            const long panel = first_panel + i, to = i * kPanel;
            widen(weight_.scales, weight_.outer_scales, panel, first, count, numbers.scales + to);
            if (has_minima()) widen(weight_.minima, weight_.outer_minima, panel, first, count, numbers.minima + to);
            if (!has_zeros()) continue;
            const uint8_t* const zeros = weight_.zeros + (panel * groups_ + first) * kPanel;
            for (long g = 0; g < count; ++g)
                for (int lane = 0; lane < kPanel; lane += kLanes)
                    store(numbers.negated_zeros + to + g * kTileOutputs + lane,
                          subtract(splat(0.0f), widen_bytes(zeros + g * kPanel + lane)));
        }
    }

    // Prefetch what `read` will read. Forcibly inlined: the compiler drops calls of functions that only prefetch.
    inline __attribute__((always_inline)) void prefetch_groups(long first_panel, long first, long count) const {
        const long bytes = weight_.scale_type == kRinglineFloat32 ? 4 : 2, each = outer_groups_ ? 1 : bytes;
        for (long i = 0; i < kTilePanels; ++i) {
            const long at = ((first_panel + i) * groups_ + first) * kPanel;
            for (long byte = 0; byte < count * kPanel * each; byte += kLineBytes) {
                prefetch(static_cast<const char*>(weight_.scales) + at * each + byte);
                if (has_minima()) prefetch(static_cast<const char*>(weight_.minima) + at * each + byte);
            }
            if (has_zeros())
                for (long byte = 0; byte < count * kPanel; byte += kLineBytes) prefetch(weight_.zeros + at + byte);
            if (outer_groups_) {
                const long group = (first_panel + i) * outer_groups_ + first / (weight_.outer_size / size());
                prefetch(static_cast<const char*>(weight_.outer_scales) + group * kPanel * bytes);
                if (has_minima()) prefetch(static_cast<const char*>(weight_.outer_minima) + group * kPanel * bytes);
            }
        }
    }

private:
    // Numbers of `count` groups of a panel, times the outer numbers.
    void widen(const void* own, const void* outer, long panel, long first, long count, float* to) const {
        const long at = (panel * groups_ + first) * kPanel;
        with_number_type(weight_.scale_type, [&](auto number) {
            using F = decltype(number);
            using Element = typename F::Element;
            if (!outer) {
                const auto* const from = static_cast<const Element*>(own) + at;
                for (long g = 0; g < count; ++g)
                    for (int lane = 0; lane < kPanel; lane += kLanes)
                        store(to + g * kTileOutputs + lane, F::widen(from + g * kPanel + lane));
                return 0;
            }
            const long each = weight_.outer_size / size();
            const auto* const from = static_cast<const int8_t*>(own) + at;
            const auto* factors = static_cast<const Element*>(outer) + (panel * outer_groups_ + first / each) * kPanel;
            long left = each - first % each;
            for (long g = 0; g < count; ++g) {
                for (int lane = 0; lane < kPanel; lane += kLanes)
                    store(to + g * kTileOutputs + lane,
                          multiply(F::widen(factors + lane), widen_bytes(from + g * kPanel + lane)));
                if (--left > 0) continue;
                factors += kPanel;
                left = each;
            }
            return 0;
        });
    }

    const RinglineQuantizedWeight& weight_;
    const long groups_, outer_groups_;
};

// Each row's input sums by group, if the weight has zeros or minima. D: the factors' type.
template <class D>
class InputSums {
    using Factor = typename D::Factor;

public:
    InputSums(const RinglineQuantizedWeight& weight, const Factor* x, long stride, long rows, int threads)
        : groups_(weight.zeros || weight.minima ? groups_of(weight) : 0), buffer_(rows * groups_ * sizeof(float)) {
        if (groups_ == 0 || failed()) return;
        const long inputs = weight.in_features, size = weight.group_size;
        parallel_for(threads_worth(rows * inputs / kConvertedPerNanosecond, threads), rows, 1, [&](long row) {
            for (long g = 0; g < groups_; ++g) {
                const long first = g * size, end = first + size < inputs ? first + size : inputs;
                of(row)[g] = sum(x + row * stride + first, end - first);
            }
        });
    }

    bool failed() const { return buffer_.failed(); }
    float* of(long row) const { return reinterpret_cast<float*>(buffer_.at(0)) + row * groups_; }

private:
    static float sum(const Factor* x, long count) {
        Vec sums = D::widen(x);
        for (long i = kLanes; i < count; i += kLanes) sums = add(sums, D::widen(x + i));
        float lanes[kLanes];
        store(lanes, sums);
        for (int half = kLanes / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
        return lanes[0];
    }

    const long groups_;
    const Buffer buffer_;
};

}  // namespace
