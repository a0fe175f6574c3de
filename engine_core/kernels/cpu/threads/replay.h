// Replays captured kernel calls on another step's rows and sequences.
#pragma once

#include "experts/expert_phases.h"
#include "interface.h"
#include "threads/team.h"

namespace {

// The kinds of captured calls.
#define RINGLINE_KIND(name, Arguments) kKind_##name,
enum : int32_t { RINGLINE_KERNELS(RINGLINE_KIND) RINGLINE_INT8_KERNELS(RINGLINE_KIND) };
#undef RINGLINE_KIND

// f(arguments), with their type.
template <class F>
auto with_arguments(const RinglineOperation& operation, const F& f) {
#define RINGLINE_CASE(name, Arguments) \
    case kKind_##name: return f(*static_cast<const Arguments*>(operation.arguments));
    switch (operation.kind) {
        RINGLINE_KERNELS(RINGLINE_CASE)
        RINGLINE_INT8_KERNELS(RINGLINE_CASE)
    }
#undef RINGLINE_CASE
    __builtin_unreachable();
}

// Set a call's arguments that differ from step to step.
template <class Arguments>
void adapt(Arguments& call, const RinglineStep& step) {
    call.rows = step.rows;
    call.num_threads = step.num_threads;
}
void adapt(RinglineAttention& call, const RinglineStep& step) {
    call.query_starts = step.query_starts;
    call.seq_lens = step.seq_lens;
    call.block_tables = step.block_tables[call.group];
    call.block_table_stride = step.block_table_stride;
    call.visible_until = step.visible_until[call.group];
    call.num_seqs = step.num_seqs;
    call.num_threads = step.num_threads;
}
void adapt(RinglineSelection& call, const RinglineStep& step) {
    call.indices = step.selected;
    call.rows = step.num_selected;
    call.num_threads = step.num_threads;
}
template <class Arguments>
void adapt_states(Arguments& call, const RinglineStep& step) {
    call.query_starts = step.query_starts;
    call.sources = step.state_sources;
    call.save_starts = step.save_starts;
    call.save_rows = step.save_rows;
    call.save_slots = step.save_slots;
    call.num_seqs = step.num_seqs;
    call.num_threads = step.num_threads;
}
void adapt(RinglineShortConvolution& call, const RinglineStep& step) { adapt_states(call, step); }
void adapt(RinglineRecurrence& call, const RinglineStep& step) { adapt_states(call, step); }
void adapt(RinglineInt8Packing&, const RinglineStep&) {}  // weights are packed before any step
void adapt(RinglineQuantizedPacking&, const RinglineStep&) {}
void adapt(RinglineBarrier&, const RinglineStep&) {}

int replay_one(const RinglineOperation& operation, const RinglineStep& step) {
    return with_arguments(operation, [&](auto call) {  // a copy
        adapt(call, step);
        return reinterpret_cast<int (*)(const decltype(call)&)>(operation.kernel)(call);
    });
}

// Scalar products per row.
template <class Arguments>
long products(const Arguments&) { return 0; }
long products(const RinglineLinear& call) { return call.in_features * call.out_features; }
long products(const RinglineGroupedLinear& call) { return call.groups * call.in_features * call.out_features; }
long products(const RinglineExperts& call) { return call.top_k * products_of_pair(call); }
long products(const RinglineRecurrence& call) { return 3l * call.num_heads * call.key_dim * call.value_dim; }
long products(const RinglineInt8Linear& call) { return call.weight->in_features * call.weight->out_features; }

// Captured calls, in order.
struct Replay {
    const RinglineOperation* operations;
    int64_t count;
    RinglineStep step;
    int result;  // of the first call that failed, or 0

    // Nanoseconds of the products on one thread, about.
    long cost() const {
        long total = 0;
        for (int64_t i = 0; i < count; ++i)
            total += with_arguments(operations[i], [](const auto& call) { return products(call); });
        return total * step.rows / kProductsPerNanosecond;
    }

    void run() {
        for (int64_t i = 0; i < count && result == kRinglineDone; ++i) {
            result = replay_one(operations[i], step);
            if (operations[i].kind == kKind_select_rows) step.rows = step.num_selected;
        }
    }

    static constexpr long kProductsPerNanosecond = 100;
};

inline void run_replay(void* replay, int) { static_cast<Replay*>(replay)->run(); }

// Returns a RinglineResult: of the first call that failed.
int replay(const RinglineOperation* operations, int64_t count, const RinglineStep& step) {
    Replay calls{operations, count, step, kRinglineDone};
    lead_team(threads_worth(calls.cost(), step.num_threads), run_replay, &calls);
    return calls.result;
}

}  // namespace
