// Several residual streams per row: alternating updates (Baykal et al., 2023, https://arxiv.org/abs/2301.13310), and the
// streams' beginning and end, where one is brought to another's magnitude; and the cutoff of sparse activations.
#pragma once

#include "simd/exponent.h"
#include "rows/norm.h"
#include "threads/memory.h"

namespace {

constexpr int kMostStreams = 8;
constexpr long kMixedPerNanosecond = 2;

// The weight of each row's coefficients: that of its adapter, or the model's.
class StreamWeights {
public:
    explicit StreamWeights(const RinglineStreams& args)
        : weight_(args.weight),
          adapted_(args.adapters && args.adapters->num_adapters > 0),
          of_rows_(adapted_ ? args.rows * static_cast<long>(sizeof(const float*)) : 1) {
        if (!adapted_ || failed()) return;
        const RinglineLoraStep& step = *args.adapters;
        const bool all = args.rows == step.num_rows;
        const int32_t *const starts = all ? step.starts : step.wanted_starts, *const rows = all ? step.rows : step.wanted_rows;
        for (long row = 0; row < args.rows; ++row) list()[row] = weight_;
        for (int i = 0; i < step.num_adapters; ++i)
            if (const float* const merged = step.adapters[i][args.lora_layer].merged)
                for (int32_t at = starts[i]; at < starts[i + 1]; ++at) list()[rows[at]] = merged;
    }

    bool failed() const { return of_rows_.failed(); }
    const float* of(long row) const { return adapted_ ? list()[row] : weight_; }

private:
    const float** list() const { return reinterpret_cast<const float**>(of_rows_.at(0)); }

    const float* const weight_;
    const bool adapted_;
    const Buffer of_rows_;
};

// One row's streams. F is their number type.
template <class F>
class StreamsOfRow {
    using Element = typename F::Element;

public:
    StreamsOfRow(const RinglineStreams& args, const float* weight, long row)
        : args_(args),
          weight_(weight),
          x_(static_cast<const Element*>(args.x) + row * args.streams * args.width),
          update_(args.update ? static_cast<const Element*>(args.update) + row * args.width : nullptr),
          output_(static_cast<Element*>(args.output) + row * args.output_stride),
          active_(args.active_output ? static_cast<Element*>(args.active_output) + row * args.width : nullptr) {
        if (!args.logits) return;
        for (int i = 0; i < args.streams; ++i) {
            float lanes[kLanes];
            store(lanes, tanh_of(splat(args.logits[row * args.streams + i])));
            modalities_[i] = lanes[0];
        }
    }

    // Each stream, plus the others by their coefficients.
    void predict() const {
        float mix[kMostStreams * kMostStreams];
        for (int pair = 0; pair < args_.streams * args_.streams; ++pair) mix[pair] = coefficient(pair);
        compute([&](const Vec* x, Vec, int stream) {
            Vec y = x[stream];
            for (int other = 0; other < args_.streams; ++other)
                y = multiply_add(x[other], splat(mix[stream * args_.streams + other]), y);
            return y;
        });
    }

    // Each stream, plus its share of the change of the active one.
    void correct() const {
        float shares[kMostStreams];
        for (int stream = 0; stream < args_.streams; ++stream) shares[stream] = 1.0f + coefficient(stream);
        compute([&](const Vec* x, Vec update, int stream) {
            return multiply_add(subtract(update, x[args_.active]), splat(shares[stream]), x[stream]);
        });
    }

    // The update is added to all streams but the first.
    void add_to_others() const {
        compute([](const Vec* x, Vec update, int stream) { return stream == 0 ? x[0] : add(x[stream], update); });
    }

    void copy() const {
        compute([](const Vec* x, Vec, int stream) { return x[stream]; });
    }

private:
    float coefficient(int output) const {
        float total = 0.0f;
        for (int i = 0; i < args_.streams; ++i) total += weight_[output * args_.streams + i] * modalities_[i];
        return total;
    }

    // f(all streams, the update, stream): kLanes numbers of a stream.
    template <class Mix>
    void compute(const Mix& mix) const {
        Vec x[kMostStreams];
        for (long i = 0; i < args_.width; i += kLanes) {
            for (int stream = 0; stream < args_.streams; ++stream) x[stream] = F::widen(x_ + stream * args_.width + i);
            const Vec update = update_ ? F::widen(update_ + i) : splat(0.0f);
            for (int stream = 0; stream < args_.streams; ++stream) {
                const Vec y = mix(x, update, stream);
                F::narrow(output_ + stream * args_.output_stream_stride + i, y);
                if (active_ && stream == args_.active)
                    F::narrow(active_ + i, args_.scale ? multiply(y, load(args_.scale + i)) : y);
            }
        }
    }

    const RinglineStreams& args_;
    const float* const weight_;
    const Element *const x_, *const update_;
    Element *const output_, *const active_;
    float modalities_[kMostStreams];
};

// Returns 0, or 1 when there is no memory.
template <class F>
int mix_streams(const RinglineStreams& args) {
    const long width = args.streams * args.width;
    const int threads = threads_worth(args.rows * width / kMixedPerNanosecond, args.num_threads);
    const StreamWeights weights(args);
    if (weights.failed()) return 1;
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        const StreamsOfRow<F> streams(args, weights.of(row), row);
        switch (args.kind) {
            case kRinglinePredict: return streams.predict();
            case kRinglineCorrect: return streams.correct();
            case kRinglineAddToOthers: return streams.add_to_others();
            default: return streams.copy();
        }
    });
    return 0;
}

inline int streams(const RinglineStreams& args) {
    return with_number_type(args.number_type, [&](auto number) { return mix_streams<decltype(number)>(args); });
}

template <class F>
inline float mean_of_squares(const typename F::Element* x, long width, long mean_width) {
    Vec squares = splat(0.0f);
    for (long i = 0; i < width; i += kLanes) {
        const Vec v = F::widen(x + i);
        squares = multiply_add(v, v, squares);
    }
    return sum_of_lanes(squares) / static_cast<float>(mean_width);
}

template <class F>
int match_rows(const RinglineMagnitude& args) {
    using Element = typename F::Element;
    const long width = args.width;
    const int threads = threads_worth(args.rows * args.groups * width / kNormalizedPerNanosecond, args.num_threads);
    const Vec scale = splat(args.scale);
    parallel_for(threads, args.rows, rows_of_piece(width), [&](long row) {
        const Element* const target = static_cast<const Element*>(args.target) + row * args.target_stride;
        const Element* const residual = args.residual ? static_cast<const Element*>(args.residual) + row * args.residual_stride : nullptr;
        Element* to = static_cast<Element*>(args.output) + row * args.output_stride;
        if (args.leads) {
            std::memcpy(to, target, width * sizeof *to);
            to += width;
        }
        const float wanted = __builtin_sqrtf(mean_of_squares<F>(target, width, args.mean_width));
        for (long group = 0; group < args.groups; ++group, to += width) {
            const Element* const x = static_cast<const Element*>(args.x) + (row * args.groups + group) * width;
            const float found = mean_of_squares<F>(x, width, args.mean_width);
            const Vec ratio = splat(wanted / __builtin_sqrtf(found > args.least ? found : args.least));
            for (long i = 0; i < width; i += kLanes) {
                const Vec y = multiply(F::widen(x + i), ratio);
                F::narrow(to + i, multiply(residual ? add(y, F::widen(residual + i)) : y, scale));
            }
        }
    });
    return 0;
}

inline int match_magnitude(const RinglineMagnitude& args) {
    return with_number_type(args.number_type, [&](auto number) { return match_rows<decltype(number)>(args); });
}

// Σ (x − mean)² over `count` numbers of a row, whose others, anywhere in it, are zeros.
template <class F>
inline float sum_of_squares_among_zeros(const typename F::Element* x, long width, long count, float mean) {
    const Vec least = splat(__FLT_MIN__);
    Vec squares = splat(0.0f), others = splat(0.0f);
    for (long i = 0; i < width; i += kLanes) {
        const Vec v = F::widen(x + i), square = multiply(v, v);
        const Vec centered = zero_where_less(subtract(v, splat(mean)), square, least);
        squares = multiply_add(centered, centered, squares);
        others = add(others, zero_where_less(splat(1.0f), square, least));
    }
    // What padding would add is not subtracted: it may be much more than the rest.
    return sum_of_lanes(squares) + (static_cast<float>(count) - sum_of_lanes(others)) * mean * mean;
}

template <class F>
int cut_off_rows(const RinglineCutoff& args) {
    using Element = typename F::Element;
    const int threads = threads_worth(args.rows * (args.width + 2 * args.over_width) / kNormalizedPerNanosecond, args.num_threads);
    const float count = static_cast<float>(args.count);
    parallel_for(threads, args.rows, rows_of_piece(args.over_width), [&](long row) {
        const Element* const over = static_cast<const Element*>(args.over) + row * args.over_stride;
        Element* const x = static_cast<Element*>(args.x) + row * args.x_stride;
        const float mean = sum_of<F>(over, args.over_width) / count;
        const float squares = sum_of_squares_among_zeros<F>(over, args.over_width, args.count, mean);
        const Vec least = splat(mean + __builtin_sqrtf(squares / count) * args.deviations);
        for (long i = 0; i < args.width; i += kLanes)
            F::narrow(x + i, maximum_of(splat(0.0f), subtract(F::widen(x + i), least)));
    });
    return 0;
}

inline int cut_off(const RinglineCutoff& args) {
    return with_number_type(args.number_type, [&](auto number) { return cut_off_rows<decltype(number)>(args); });
}

}  // namespace
