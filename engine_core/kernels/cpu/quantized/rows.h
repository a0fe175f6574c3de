// Dequantizes rows of a quantized weight: token embeddings, if the table is also the head's weight.
#pragma once

#include "linear/embedding.h"
#include "quantized/pack.h"

namespace {

class QuantizedRow {
public:
    QuantizedRow(const RinglineQuantizedWeight& weight, long row)
        : weight_(weight), panel_(row / kPackedOutputs), lane_(row % kPackedOutputs), groups_(groups_of(weight)) {}

    // The numbers of some neighbouring inputs of a group.
    void read(long first, long count, float* to) const {
        const long group = first / weight_.group_size, at = (panel_ * groups_ + group) * kPackedOutputs + lane_;
        const long outer = outer_at(first);
        const float scale = number(weight_.scales, at, weight_.outer_scales, outer);
        const float zero = weight_.zeros ? static_cast<float>(weight_.zeros[at]) : 0.0f;
        const float minimum = weight_.minima ? number(weight_.minima, at, weight_.outer_minima, outer) : 0.0f;
        for (long i = 0; i < count; ++i) to[i] = scale * (weight_.codebook[code(first + i)] - zero) + minimum;
    }

private:
    long outer_at(long input) const {
        if (!weight_.outer_size) return 0;
        return (panel_ * outer_groups_of(weight_) + input / weight_.outer_size) * kPackedOutputs + lane_;
    }

    float number(const void* inner, long at, const void* outer, long outer_at) const {
        if (!outer) return of_type(inner, at);
        return static_cast<float>(static_cast<const int8_t*>(inner)[at]) * of_type(outer, outer_at);
    }
    float of_type(const void* numbers, long at) const {
        float found[kLanes];
        with_number_type(weight_.scale_type, [&](auto type) {
            using F = decltype(type);
            typename F::Element one[kLanes] = {static_cast<const typename F::Element*>(numbers)[at]};
            store(found, F::widen(one));
            return 0;
        });
        return found[0];
    }

    int code(long input) const {
        return with_bits(weight_.bits, [&](auto bits) {
            using Lines = CodeLines<bits.value>;
            const long line = panel_ * code_lines(weight_) + input / Lines::kInputs * Lines::kCount;
            return Lines::code(weight_.codes + line * kLineBytes + lane_ * 4, static_cast<int>(input % Lines::kInputs));
        });
    }

    const RinglineQuantizedWeight& weight_;
    const long panel_, lane_, groups_;
};

template <class F>
int read_quantized_rows(const RinglineRows& args) {
    using Element = typename F::Element;
    const auto& weight = *static_cast<const RinglineQuantizedWeight*>(args.weight);
    const long width = weight.in_features;
    const int threads = threads_worth(args.rows * width / kReadPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, 1, [&](long place) {
        const QuantizedRow row(weight, args.indices[place]);
        Element* const to = static_cast<Element*>(args.output) + place * width;
        for (long first = 0; first < width; first += kPanel) {
            float numbers[kPanel];
            Element rounded[kPanel];
            row.read(first, kPanel, numbers);
            for (int i = 0; i < kPanel; i += kLanes) F::narrow(rounded + i, load(numbers + i));
            for (int i = 0; i < kPanel; ++i) to[weight.input_order ? weight.input_order[first + i] : first + i] = rounded[i];
        }
    });
    return 0;
}

inline int quantized_rows(const RinglineRows& args) {
    return with_number_type(args.number_type, [&](auto number) { return read_quantized_rows<decltype(number)>(args); });
}

}  // namespace
