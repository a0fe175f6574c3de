// Rounds weights to 4 bits while a layer is built: a number becomes scale · level + minimum, with a scale and a minimum per
// group of neighbouring inputs of an output, and 16 levels, closer together where numbers are more frequent.
//
// Several first guesses are improved by turns (the nearest levels for a scale and minimum, then the scale and minimum with
// the least squared error for those levels); the one with the least error wins. Sixteen rows are rounded together, each in
// its own lane, in loops that the compiler vectorizes; as no product is fused with a sum, all instruction sets round
// alike.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd/formats.h"
#include "threads/team.h"

namespace {

// The best levels for normal numbers in groups of 32 (by Lloyd's method), as integers, and their midpoints. The other
// eight are their negatives.
constexpr float kInt4Levels[8] = {3, 10, 17, 24, 32, 40, 51, 63};
constexpr float kInt4Bounds[7] = {6.5f, 13.5f, 20.5f, 28, 36, 45.5f, 57};
constexpr float kInt4Guesses[] = {0.78f, 0.86f, 0.94f, 1.02f};  // factors of the scale that spans all numbers
constexpr int kInt4Improvements = 2;
constexpr int kInt4Rows = 16;
constexpr int kInt4Outer = 256;        // inputs that share an outer scale
constexpr int kInt4MostGroups = kInt4Outer / 32;
constexpr float kInt4MostInner = 127;  // the largest inner scale or minimum, in units of the outer

// A number per row.
struct Int4Lanes {
    float at[kInt4Rows];

    float& operator[](int row) { return at[row]; }
    float operator[](int row) const { return at[row]; }
};

template <class F>
inline Int4Lanes int4_lanes(const F& f) {
    Int4Lanes lanes;
    for (int row = 0; row < kInt4Rows; ++row) lanes[row] = f(row);
    return lanes;
}

inline float int4_level(float place) {
    const float size = std::fabs(place);
    float found = kInt4Levels[0];
    for (int bound = 0; bound < 7; ++bound)
        found += size > kInt4Bounds[bound] ? kInt4Levels[bound + 1] - kInt4Levels[bound] : 0.0f;
    return place < 0 ? -found : found;
}

inline int int4_code(float place) {
    const float size = std::fabs(place);
    int found = 0;
    for (int bound = 0; bound < 7; ++bound) found += size > kInt4Bounds[bound] ? 1 : 0;
    return place < 0 ? 7 - found : 8 + found;
}

// 1 / scale, or 0.
inline Int4Lanes int4_factor(const Int4Lanes& scale) {
    return int4_lanes([&](int row) { return scale[row] > 0 ? 1 / scale[row] : 0.0f; });
}

struct Int4Group {
    Int4Lanes scale, minimum;

    // Refit scale and minimum to the nearest levels of the numbers less their mean; returns how much that lowers the sum
    // of squares.
    Int4Lanes improve(const Int4Lanes* numbers, int count, const Int4Lanes& mean) {
        const Int4Lanes factor = int4_factor(scale);
        Int4Lanes sum = {}, squares = {}, products = {};
        for (int i = 0; i < count; ++i)
            for (int row = 0; row < kInt4Rows; ++row) {
                const float number = numbers[i][row] - mean[row];
                const float level = int4_level((number - minimum[row]) * factor[row]);
                sum[row] += level;
                squares[row] += level * level;
                products[row] += level * number;
            }
        const float share = 1.0f / count;
        return int4_lanes([&](int row) {
            const float variance = squares[row] - sum[row] * sum[row] * share;
            const bool fits = variance > 0 && products[row] > 0;
            scale[row] = fits ? products[row] / variance : scale[row];
            minimum[row] = fits ? -scale[row] * sum[row] * share : minimum[row];
            return fits ? scale[row] * products[row] : 0.0f;
        });
    }

    static Int4Group of(const Int4Lanes* numbers, int count) {
        Int4Lanes least = numbers[0], most = numbers[0], mean = {};
        for (int i = 0; i < count; ++i)
            for (int row = 0; row < kInt4Rows; ++row) {
                const float number = numbers[i][row];
                least[row] = number < least[row] ? number : least[row];
                most[row] = number > most[row] ? number : most[row];
                mean[row] += number;
            }
        for (int row = 0; row < kInt4Rows; ++row) mean[row] *= 1.0f / count;
        Int4Group best = {};
        Int4Lanes best_gain = int4_lanes([](int) { return -1.0f; });
        for (const float guess : kInt4Guesses) {
            Int4Group group;
            group.scale = int4_lanes([&](int row) { return guess * (most[row] - least[row]) / (2 * kInt4Levels[7]); });
            group.minimum = int4_lanes([&](int row) { return 0.5f * least[row] + 0.5f * most[row] - mean[row]; });
            Int4Lanes gain;
            for (int time = 0; time < kInt4Improvements; ++time) gain = group.improve(numbers, count, mean);
            for (int row = 0; row < kInt4Rows; ++row) {
                const bool better = gain[row] > best_gain[row];
                best_gain[row] = better ? gain[row] : best_gain[row];
                best.scale[row] = better ? group.scale[row] : best.scale[row];
                best.minimum[row] = better ? group.minimum[row] : best.minimum[row];
            }
        }
        for (int row = 0; row < kInt4Rows; ++row) best.minimum[row] += mean[row];
        return best;
    }
};

// Outer scales or minima, as bfloat16; inner ones become integer multiples of them.
class Int4Outer {
public:
    explicit Int4Outer(const Int4Lanes& most) {
        for (int row = 0; row < kInt4Rows; ++row) {
            uint32_t number;
            const float unit = most[row] / kInt4MostInner;
            std::memcpy(&number, &unit, sizeof number);
            bits[row] = static_cast<uint16_t>((number + 0x7fffu + (number >> 16 & 1u)) >> 16);
            number = static_cast<uint32_t>(bits[row]) << 16;
            std::memcpy(&unit_[row], &number, sizeof number);
        }
    }

    // Round `numbers` in place to multiples of the outer ones; `inner` gets the factors.
    void round(Int4Lanes& numbers, int8_t* inner) const {
        for (int row = 0; row < kInt4Rows; ++row) {
            const float times = unit_[row] > 0 ? numbers[row] / unit_[row] : 0.0f;
            inner[row] = static_cast<int8_t>(std::nearbyint(std::min(std::max(times, -kInt4MostInner), kInt4MostInner)));
            numbers[row] = inner[row] * unit_[row];
        }
    }

    uint16_t bits[kInt4Rows];

private:
    Int4Lanes unit_;
};

// Rounded numbers: up to kInt4Outer of each row.
struct Int4Block {
    uint8_t codes[kInt4Outer][kInt4Rows];
    int8_t scales[kInt4MostGroups][kInt4Rows], minima[kInt4MostGroups][kInt4Rows];
    uint16_t outer_scales[kInt4Rows], outer_minima[kInt4Rows];

    void round(const Int4Lanes* numbers, int count, int group_size) {
        Int4Group groups[kInt4MostGroups];
        Int4Lanes most_scale = {}, most_minimum = {};
        const int num_groups = (count + group_size - 1) / group_size;
        for (int g = 0; g < num_groups; ++g) {
            groups[g] = Int4Group::of(numbers + g * group_size, std::min(group_size, count - g * group_size));
            for (int row = 0; row < kInt4Rows; ++row) {
                most_scale[row] = std::max(most_scale[row], groups[g].scale[row]);
                most_minimum[row] = std::max(most_minimum[row], std::fabs(groups[g].minimum[row]));
            }
        }
        const Int4Outer of_scales(most_scale), of_minima(most_minimum);
        std::memcpy(outer_scales, of_scales.bits, sizeof outer_scales);
        std::memcpy(outer_minima, of_minima.bits, sizeof outer_minima);
        for (int g = 0; g < num_groups; ++g) {
            const int first = g * group_size, end = std::min(count, first + group_size);
            of_scales.round(groups[g].scale, scales[g]);
            const Int4Lanes &scale = groups[g].scale, factor = int4_factor(scale);
            Int4Lanes& minimum = groups[g].minimum;
            Int4Lanes rest = {};  // what remains for a minimum
            for (int i = first; i < end; ++i)
                for (int row = 0; row < kInt4Rows; ++row) {
                    const float level = int4_level((numbers[i][row] - minimum[row]) * factor[row]);
                    rest[row] += numbers[i][row] - scale[row] * level;
                }
            for (int row = 0; row < kInt4Rows; ++row) minimum[row] = rest[row] * (1.0f / (end - first));
            of_minima.round(minimum, minima[g]);
            for (int i = first; i < end; ++i)
                for (int row = 0; row < kInt4Rows; ++row)
                    codes[i][row] = static_cast<uint8_t>(int4_code((numbers[i][row] - minimum[row]) * factor[row]));
        }
    }
};

// Copy `count` numbers of a row to its lane of `to`. If they include an infinity or NaN, writes zeros and returns
// false.
template <class F>
bool take_int4_row(const typename F::Element* from, int count, Int4Lanes* to, int row) {
    typename F::Element stored[kInt4Outer] = {};
    float numbers[kInt4Outer];
    int32_t bits[kInt4Outer], most = 0;
    std::memcpy(stored, from, count * sizeof *stored);
    for (int i = 0; i < kInt4Outer; i += kLanes) store(numbers + i, F::widen(stored + i));
    std::memcpy(bits, numbers, sizeof bits);
    for (int i = 0; i < kInt4Outer; ++i) most = std::max(most, bits[i] & 0x7fffffff);
    const bool finite = most < 0x7f800000;
    for (int i = 0; i < count; ++i) to[i][row] = finite ? numbers[i] : 0.0f;
    return finite;
}

template <class F>
int round_rows_to_int4(const RinglineInt4Rounding& args) {
    const long inputs = args.in_features, size = args.group_size;
    const long groups = (inputs + size - 1) / size, outer = (inputs + kInt4Outer - 1) / kInt4Outer;
    parallel_for(args.num_threads, (args.rows + kInt4Rows - 1) / kInt4Rows, 1, [&](long panel) {
        const long first_row = panel * kInt4Rows;
        const int rows = static_cast<int>(std::min<long>(kInt4Rows, args.rows - first_row));
        Int4Lanes numbers[kInt4Outer] = {};
        Int4Block block;
        for (long o = 0; o < outer; ++o) {
            const long first = o * kInt4Outer, first_group = first / size;
            const int count = static_cast<int>(std::min<long>(kInt4Outer, inputs - first));
            bool finite[kInt4Rows];
            for (int row = 0; row < rows; ++row) {
                const auto* const input = static_cast<const typename F::Element*>(args.input) + (first_row + row) * inputs;
                finite[row] = take_int4_row<F>(input + first, count, numbers, row);
            }
            block.round(numbers, count, static_cast<int>(size));
            for (int row = 0; row < rows; ++row) {
                const long to = first_row + row;
                for (int i = 0; i < count; ++i) args.codes[to * inputs + first + i] = block.codes[i][row];
                for (int g = 0; g * size < count; ++g) {
                    // An infinity or NaN makes all of a row's numbers in the block NaN.
                    args.scales[to * groups + first_group + g] = finite[row] ? block.scales[g][row] : 1;
                    args.minima[to * groups + first_group + g] = finite[row] ? block.minima[g][row] : 1;
                }
                args.outer_scales[to * outer + o] = finite[row] ? block.outer_scales[row] : 0x7fc0;
                args.outer_minima[to * outer + o] = finite[row] ? block.outer_minima[row] : 0x7fc0;
            }
        }
    });
    return kRinglineDone;
}

inline int int4_round(const RinglineInt4Rounding& args) {
    return with_number_type(args.input_type, [&](auto input) { return round_rows_to_int4<decltype(input)>(args); });
}

}  // namespace
