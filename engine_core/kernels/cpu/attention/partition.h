// Divides a step into work for threads.
#pragma once

#include "attention/layout.h"
#include "threads/memory.h"
#include "threads/team.h"

namespace {

constexpr int kQueryRows = 48;  // rows of scores computed together: enough for products to pay off
constexpr int kQueryRowsOfCodes = 96;  // and for expanding an 8-bit cache's tiles
constexpr long kWorkPerNanosecond = 12;

// The keys that a row sees: its own and the `size` − 1 before it, or, chunked, those from the last multiple of `size`.
struct Window {
    explicit Window(const RinglineAttention& args) : size(args.sliding_window), chunked(args.chunked != 0) {}

    int size;  // 0: all earlier keys
    bool chunked;

    // Position of the first key that the row at `position` sees.
    int first_key(int position) const {
        if (size == 0 || position < size) return 0;
        return chunked ? position - position % size : position - size + 1;
    }
    // The rows from `position` on, at most `count`, before the first whose window begins after `key`.
    int rows_seeing(int key, int position, int count) const {
        const int rows = size > 0 ? key - (chunked ? key % size : 0) + size - position : count;
        return rows < 0 ? 0 : rows < count ? rows : count;
    }
};

// Ends of what rows see: behind their own key, or behind their picture. In a sequence, later rows never see less.
struct Limits {
    explicit Limits(const RinglineAttention& args) : until(args.both_ways ? args.visible_until : nullptr) {}

    const int32_t* until;  // [T], or null

    // For the step's `row`, at `position` of its sequence.
    int end(int row, int position) const {
        return until && until[row] > position ? until[row] : position + 1;
    }
    // How many of `count` rows, the first of them the step's `row` at `position`, see no key from `key` on.
    int rows_before(int key, int row, int position, int count) const {
        if (!until) return key > position ? key - position : 0;
        int rows = 0;
        while (rows < count && end(row + rows, position + rows) <= key) ++rows;
        return rows;
    }
};

// Neighbouring rows of a sequence, with the query heads that share a KV head.
struct QueryTile {
    int sequence, kv_head;
    int row;       // the first row, in the step
    int position;  // of the first row, in the sequence
    int count;     // rows
    int end;       // behind the last key that any of them sees
};

// A step's query tiles: by sequence, then by head, latest rows first, because they take longest.
class Division {
public:
    explicit Division(const RinglineAttention& args)
        : args_(args),
          window_(args),
          limits_(args),
          group_(args.num_heads / args.num_kv_heads),
          positions_(most_rows(args) / group_ > 1 ? most_rows(args) / group_ : 1),
          buffer_(padded_bytes<int>(args.num_seqs + 1)),
          starts_(reinterpret_cast<int*>(buffer_.at(0))) {
        if (buffer_.failed()) return;
        starts_[0] = 0;
        long work = 0;
        for (int s = 0; s < args.num_seqs; ++s) {
            const int tiles = tiles_of(s);
            starts_[s + 1] = starts_[s] + tiles * args.num_kv_heads;
            several_ = several_ || tiles > 1;
            const int most = rows_of(s) < positions_ ? rows_of(s) : positions_;
            rows_ = most * group_ > rows_ ? most * group_ : rows_;
            const long seen = args.seq_lens[s] - window_.first_key(args.seq_lens[s] - rows_of(s));
            work += seen * args.num_kv_heads * args.head_dim * (4 + rows_of(s) * group_ / 8);
        }
        threads_ = threads_worth(work / kWorkPerNanosecond, args.num_threads);
    }

    bool failed() const { return buffer_.failed(); }
    int size() const { return starts_[args_.num_seqs]; }
    int threads() const { return threads_; }

    Window window() const { return window_; }
    Limits limits() const { return limits_; }
    // Query heads of a key/value head.
    int group() const { return group_; }
    // Rows of scores in the largest query tile.
    long rows() const { return rows_; }
    // Whether any sequence has several query tiles per KV head.
    bool several() const { return several_; }

    QueryTile operator[](int index) const {
        int low = 0, high = args_.num_seqs - 1;
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (starts_[middle] <= index)
                low = middle;
            else
                high = middle - 1;
        }
        const int tiles = tiles_of(low), rows = rows_of(low), place = index - starts_[low];
        const int first = (tiles - 1 - place % tiles) * positions_;
        const int count = rows - first < positions_ ? rows - first : positions_;
        const int row = args_.query_starts[low] + first, length = args_.seq_lens[low], position = length - rows + first;
        const int end = limits_.end(row + count - 1, position + count - 1);
        return {low, place / tiles, row, position, count, end < length ? end : length};
    }

private:
    static int most_rows(const RinglineAttention& args) {
        return args.cache_type == kRinglineCacheAsNumbers ? kQueryRows : kQueryRowsOfCodes;
    }
    int rows_of(int sequence) const { return args_.query_starts[sequence + 1] - args_.query_starts[sequence]; }
    int tiles_of(int sequence) const { return (rows_of(sequence) + positions_ - 1) / positions_; }

    const RinglineAttention& args_;
    Window window_;
    Limits limits_;
    int group_;
    int positions_;  // most rows of the step in a query tile
    Buffer buffer_;
    int* starts_;  // [S + 1]: each sequence's first query tile
    int threads_ = 1;
    long rows_ = 1;
    bool several_ = false;
};

}  // namespace
