// Runs captured calls of kernels, on the rows and sequences of another step.
#pragma once

#include "team.h"
#include "kernel_table.h"

namespace {

int replay_one(const RinglineOperation& operation, const RinglineStep& step) {
    const auto& kernels = *static_cast<const Kernels*>(operation.kernels);
    switch (operation.kind) {
        case kRinglineAttend: {
            auto call = *static_cast<const RinglineAttention*>(operation.arguments);
            call.query_starts = step.query_starts;
            call.seq_lens = step.seq_lens;
            call.block_tables = step.block_tables[call.group];
            call.block_table_stride = step.block_table_stride;
            call.num_seqs = step.num_seqs;
            call.num_threads = step.num_threads;
            return kernels.attention(call);
        }
        case kRinglineMultiply: {
            auto call = *static_cast<const RinglineLinear*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.linear(call);
        }
        case kRinglineNormalize: {
            auto call = *static_cast<const RinglineNorm*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.normalize(call);
        }
        case kRinglineRotate: {
            auto call = *static_cast<const RinglineRotation*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.rotate(call);
        }
        case kRinglineActivate: {
            auto call = *static_cast<const RinglineActivation*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.activate(call);
        }
        case kRinglineGate: {
            auto call = *static_cast<const RinglineSigmoidGate*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.sigmoid_gate(call);
        }
        case kRinglineMultiplyGroups: {
            auto call = *static_cast<const RinglineGroupedLinear*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.grouped_linear(call);
        }
        case kRinglineRoute: {
            auto call = *static_cast<const RinglineRouting*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.route(call);
        }
        case kRinglineRunExperts: {
            auto call = *static_cast<const RinglineExperts*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.experts(call);
        }
        case kRinglineRunInt8Experts: {
            auto call = *static_cast<const RinglineExperts*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return static_cast<const Int8Kernels*>(operation.kernels)->experts(call);
        }
        case kRinglineSelect: {
            auto call = *static_cast<const RinglineSelection*>(operation.arguments);
            call.indices = step.selected;
            call.rows = step.num_selected;
            call.num_threads = step.num_threads;
            return kernels.select_rows(call);
        }
        default: {  // kRinglineMultiplyInt8
            auto call = *static_cast<const RinglineInt8Call*>(operation.more_arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            const auto& weight = *static_cast<const RinglineInt8Weight*>(operation.arguments);
            return static_cast<const Int8Kernels*>(operation.kernels)->linear(weight, call);
        }
    }
}

// Captured calls, in order.
struct Replay {
    const RinglineOperation* operations;
    int64_t count;
    RinglineStep step;
    bool failed;

    // Nanoseconds that the products take one thread, about.
    long cost() const {
        long products = 0;
        for (int64_t i = 0; i < count; ++i) {
            const void* const arguments = operations[i].arguments;
            if (operations[i].kind == kRinglineMultiply) {
                const auto& call = *static_cast<const RinglineLinear*>(arguments);
                products += call.in_features * call.out_features;
            } else if (operations[i].kind == kRinglineMultiplyGroups) {
                const auto& call = *static_cast<const RinglineGroupedLinear*>(arguments);
                products += call.groups * call.in_features * call.out_features;
            } else if (operations[i].kind == kRinglineRunExperts || operations[i].kind == kRinglineRunInt8Experts) {
                const auto& call = *static_cast<const RinglineExperts*>(arguments);
                products += 3 * call.top_k * call.hidden * call.inner;
            } else if (operations[i].kind == kRinglineMultiplyInt8) {
                const auto& weight = *static_cast<const RinglineInt8Weight*>(arguments);
                products += weight.in_features * weight.out_features;
            }
        }
        return products * step.rows / kProductsPerNanosecond;
    }

    void run() {
        for (int64_t i = 0; i < count && !failed; ++i) {
            failed = replay_one(operations[i], step) != 0;
            if (operations[i].kind == kRinglineSelect) step.rows = step.num_selected;
        }
    }

    static constexpr long kProductsPerNanosecond = 100;
};

inline void run_replay(void* replay, int) { static_cast<Replay*>(replay)->run(); }

// Returns 0, or 1 when there was no memory.
int replay(const RinglineOperation* operations, int64_t count, const RinglineStep& step) {
    Replay calls{operations, count, step, false};
    lead_team(threads_worth(calls.cost(), step.num_threads), run_replay, &calls);
    return calls.failed;
}

}  // namespace
