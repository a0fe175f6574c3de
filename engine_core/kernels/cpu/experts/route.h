// Chooses each row's experts and their weights. A row's arithmetic runs in a fixed order of experts.
#pragma once

#include "rows/elementwise.h"
#include "threads/memory.h"

namespace {

constexpr long kRoutedPerNanosecond = 1;

// The index of the greatest of `count` values not taken, the lowest of equals; any if all are NaN.
inline int greatest(const float* values, const bool* taken, int count) {
    int best = -1;
    for (int i = 0; i < count; ++i)
        if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    return best;
}

// The scores of one row [E].
inline void score_experts(const RinglineRouting& args, const float* logits, float* scores) {
    const int count = args.num_experts;
    if (args.scoring == kRinglineSigmoid) {
        for (int i = 0; i < count; ++i) {
            float lanes[kLanes];
            store(lanes, times_sigmoid(splat(1.0f), splat(logits[i])));
            scores[i] = lanes[0];
        }
        return;
    }
    float highest = logits[0], total = 0.0f;
    for (int i = 1; i < count; ++i) highest = logits[i] > highest ? logits[i] : highest;
    for (int i = 0; i < count; ++i) {
        scores[i] = exp2_of((logits[i] - highest) * 1.44269504088896340736f);
        total += scores[i];
    }
    for (int i = 0; i < count; ++i) scores[i] /= total;
}

// Memory for a row.
struct RoutingScratch {
    RoutingScratch(char* memory, int experts, int groups) {
        Parts parts(memory);
        scores = parts.take<float>(experts);
        choice = parts.take<float>(experts);
        groups_scores = parts.take<float>(groups);
        taken = parts.take<bool>(experts);
        chosen_groups = parts.take<bool>(groups);
    }
    static long bytes(int experts, int groups) {
        return 2 * padded_bytes<float>(experts) + padded_bytes<float>(groups) + padded_bytes<bool>(experts) +
               padded_bytes<bool>(groups);
    }

    float *scores, *choice, *groups_scores;
    bool *taken, *chosen_groups;
};

// Mark all experts of groups not chosen as taken.
inline void leave_groups_out(const RinglineRouting& args, const RoutingScratch& s) {
    const int size = args.num_experts / args.num_groups;
    for (int group = 0; group < args.num_groups; ++group) {
        s.chosen_groups[group] = false;
        float total = 0.0f;
        for (int i = 0; i < args.group_best; ++i) {
            const int best = greatest(s.choice + group * size, s.taken + group * size, size);
            if (best < 0) break;
            total += s.choice[group * size + best];
            s.taken[group * size + best] = true;
        }
        s.groups_scores[group] = total;
    }
    for (int i = 0; i < args.topk_groups; ++i) s.chosen_groups[greatest(s.groups_scores, s.chosen_groups, args.num_groups)] = true;
    for (int i = 0; i < args.num_experts; ++i) s.taken[i] = !s.chosen_groups[i / size];
}

inline void route_row(const RinglineRouting& args, long row, const RoutingScratch& s) {
    const float* const logits = args.logits + row * args.num_experts;
    score_experts(args, logits, s.scores);
    const bool grouped = args.topk_groups < args.num_groups;
    const float* const scores = args.scoring == kRinglineSigmoid && !args.bias && !grouped ? logits : s.scores;
    for (int i = 0; i < args.num_experts; ++i) {
        s.choice[i] = args.bias ? scores[i] + args.bias[i] : scores[i];
        s.taken[i] = false;
    }
    if (grouped) leave_groups_out(args, s);
    int32_t* const ids = args.ids + row * args.top_k;
    float* const weights = args.weights + row * args.top_k;
    float total = args.sum_offset;
    for (int i = 0; i < args.top_k; ++i) {
        ids[i] = greatest(s.choice, s.taken, args.num_experts);
        s.taken[ids[i]] = true;
        weights[i] = s.scores[ids[i]];
        total += weights[i];
    }
    for (int i = 0; i < args.top_k; ++i) {
        if (args.renormalize) weights[i] /= total;
        weights[i] *= args.scale;
        if (args.expert_scales) weights[i] *= args.expert_scales[ids[i]];
    }
}

// Returns 0, or 1 when there is no memory. The chosen groups must have k experts together.
inline int route(const RinglineRouting& args) {
    const long bytes = RoutingScratch::bytes(args.num_experts, args.num_groups);
    const int threads = threads_worth(args.rows * args.num_experts * (args.top_k + 2) / kRoutedPerNanosecond, args.num_threads);
    const Buffer scratch(threads * bytes);
    if (scratch.failed()) return 1;
    long next = 0;
    in_parallel(threads, [&](int thread) {
        const RoutingScratch own(scratch.at(thread * bytes), args.num_experts, args.num_groups);
        for (long row = take(next); row < args.rows; row = take(next)) route_row(args, row, own);
    });
    return 0;
}

}  // namespace
