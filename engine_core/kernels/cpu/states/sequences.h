// The sequences of an op on states: their rows, where each starts from, and what it saves.
#pragma once

#include "threads/memory.h"
#include "threads/team.h"

namespace {

struct StateSequence {
    long first, end;           // rows
    long source;               // slot; negative: zeros
    long first_save, end_save;
};

template <class Arguments>
StateSequence sequence_of(const Arguments& args, long place) {
    return {args.query_starts[place], args.query_starts[place + 1], args.sources[place], args.save_starts[place],
            args.save_starts[place + 1]};
}

template <class Arguments>
long rows_of(const Arguments& args) {
    return args.query_starts[args.num_seqs] - args.query_starts[0];
}

// f(i, its thread's memory) for all 0 ≤ i < count. Returns 0, or 1 when there is no memory.
template <class F>
int for_each_with_memory(int threads, long count, long bytes, const F& f) {
    const Buffer memory(threads * bytes);
    if (memory.failed()) return 1;
    long taken = 0;
    in_parallel(threads, [&](int thread) {
        for (long i = take(taken); i < count; i = take(taken)) f(i, memory.at(thread * bytes));
    });
    return 0;
}

}  // namespace
