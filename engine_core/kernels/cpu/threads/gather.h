// Gathers ranks' parts of a matrix side by side in shared memory. Copies numbers, never computes.
#pragma once

#include <cstring>

#include "threads/barrier.h"
#include "interface.h"
#include "rows/select_rows.h"
#include "threads/team.h"

namespace {

inline int gather(const RinglineGather& args) {
    const long count = args.rows * args.groups;
    const long piece = 1 + (1 << 14) / (args.row_bytes + 1);  // rows per thread's turn: some KiB
    const int threads = threads_worth(count * args.row_bytes / kCopiedPerNanosecond, args.num_threads);
    parallel_for(threads, count, piece, [&](long i) {
        if (args.ids && (args.ids[i] < args.first_id || args.ids[i] >= args.end_id)) return;
        const long row = i / args.groups, group = i % args.groups;
        std::memcpy(static_cast<char*>(args.output) + i * args.output_stride,
                    static_cast<const char*>(args.x) + row * args.x_stride + group * args.x_group_stride, args.row_bytes);
    });
    return meet(args.ranks, args.rank, args.size, {args.place, count, args.output_stride, args.layout, {}}, args.held);
}

}  // namespace
