// Copies selected matrix rows.
#pragma once

#include "interface.h"
#include "threads/team.h"

namespace {

constexpr long kCopiedPerNanosecond = 8;  // bytes

inline int select_rows(const RinglineSelection& args) {
    const int threads = threads_worth(args.rows * args.row_bytes / kCopiedPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, 1, [&](long row) {
        const int64_t index = args.indices ? args.indices[row] : row;
        std::memcpy(static_cast<char*>(args.output) + row * args.row_bytes,
                    static_cast<const char*>(args.x) + index * args.x_stride, args.row_bytes);
    });
    return 0;
}

}  // namespace
