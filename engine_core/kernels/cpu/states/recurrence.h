// Linear recurrences with a matrix for state: the gated delta rule (Yang et al., 2024, https://arxiv.org/abs/2412.06464)
// and Mamba-2 (Dao and Gu, 2024, https://arxiv.org/abs/2405.21060).
//
// A state advances row by row. Its columns are independent of each other, so some of them, as many as registers hold sums
// of, go through all rows of a piece, in memory that the cache holds. One pass over them advances them, multiplies them by
// the row's query, and by the next row's key, which the delta rule recalls; only a piece's first row recalls by a pass of
// its own. Either way a sum is one chain of additions over the rows of the matrix, so that its bits do not depend on where
// pieces or chunks end. The state of the last row goes straight to its slot.
#pragma once

#include "rows/elementwise.h"
#include "states/sequences.h"

namespace {

constexpr long kAdvancedPerNanosecond = 8;  // numbers of states
constexpr long kAdvancedRows = 32;          // of a piece

// The most vectors of columns that advance together: registers hold their sums. Memory is read fastest if these are all
// columns of a state.
constexpr int kStateVectors = 2 * kBlockColumns;
constexpr int kRecalledVectors = kLanes == 16 ? kStateVectors : kBlockColumns;  // if keys are recalled at the same time

// Columns of a state; the stride is from one of its rows to the next.
struct StateColumns {
    float* at;
    long stride;
};

// k · S for kVectors vectors of columns.
template <int kVectors>
inline void recall(const float* key, StateColumns state, long key_dim, Vec* recalled) {
    Vec sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = splat(0.0f);
    for (long i = 0; i < key_dim; ++i)
        for (int v = 0; v < kVectors; ++v)
            sums[v] = multiply_add(splat(key[i]), load(state.at + i * state.stride + v * kLanes), sums[v]);
    for (int v = 0; v < kVectors; ++v) recalled[v] = sums[v];
}

// What a row does to a state, and reads from it.
struct StateChange {
    Vec factor;
    const float *key, *query;
    const float* next_key;  // the next row's
};

// `to` becomes S = factor · from + kᵀ · added; output = q · S, and recalled = next_key · S if kRecalls.
template <int kVectors, bool kRecalls>
inline void advance(const StateChange& change, StateColumns from, StateColumns to, long key_dim, const Vec* added,
                    Vec* output, Vec* recalled) {
    Vec outputs[kVectors], sums[kVectors], updates[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        outputs[v] = sums[v] = splat(0.0f);
        updates[v] = added[v];
    }
    for (long i = 0; i < key_dim; ++i) {
        const Vec key = splat(change.key[i]), query = splat(change.query[i]);
        const float* const old = from.at + i * from.stride;
        float* const advanced = to.at + i * to.stride;
        for (int v = 0; v < kVectors; ++v) {
            const Vec state = multiply_add(key, updates[v], multiply(change.factor, load(old + v * kLanes)));
            store(advanced + v * kLanes, state);
            outputs[v] = multiply_add(query, state, outputs[v]);
            if (kRecalls) sums[v] = multiply_add(splat(change.next_key[i]), state, sums[v]);
        }
    }
    for (int v = 0; v < kVectors; ++v) {
        output[v] = outputs[v];
        if (kRecalls) recalled[v] = sums[v];
    }
}

// A thread's memory.
struct RecurrenceScratch {
    RecurrenceScratch(char* memory, const RinglineRecurrence& args) {
        Parts parts(memory);
        state = parts.take<float>(long{args.key_dim} * args.value_dim);
        queries = parts.take<float>(kAdvancedRows * args.key_dim);
        keys = parts.take<float>(kAdvancedRows * args.key_dim);
        factors = parts.take<float>(kAdvancedRows);
        shares = parts.take<float>(kAdvancedRows);
    }
    static long bytes(const RinglineRecurrence& args) {
        return padded_bytes<float>(long{args.key_dim} * args.value_dim) +
               2 * padded_bytes<float>(kAdvancedRows * args.key_dim) + 2 * padded_bytes<float>(kAdvancedRows);
    }

    float* state;             // columns that advance together are adjacent: [column / together, K, together]
    float *queries, *keys;    // [kAdvancedRows, K]: normalized, if at all; queries are scaled
    float *factors, *shares;  // [kAdvancedRows]: exp(s · rate); σ(update), or s without updates
};

// Columns first_column … end_column − 1 of a head, in one sequence. F is the number type.
template <class F>
class RecurrenceOfHead {
    using Element = typename F::Element;

public:
    RecurrenceOfHead(const RinglineRecurrence& args, const StateSequence& sequence, long head, long first_column,
                     long end_column)
        : args_(args),
          sequence_(sequence),
          head_(head),
          key_head_(head / (args.num_heads / args.num_key_heads)),
          first_column_(first_column),
          end_column_(end_column) {}

    void run(const RecurrenceScratch& scratch) const {
        long save = sequence_.first_save;
        for (long first = sequence_.first; first < sequence_.end; first += kAdvancedRows) {
            const long end = sequence_.end < first + kAdvancedRows ? sequence_.end : first + kAdvancedRows;
            prepare(first, end, scratch);
            for (long column = first_column_; column < end_column_;) {
                const Piece piece{first, end, save, column};
                column += columns_at(column);
                if (args_.update)
                    advance_as<kStateVectors, true>(piece, scratch);
                else
                    advance_as<kStateVectors, false>(piece, scratch);
            }
            while (save < sequence_.end_save && args_.save_rows[save] < end) ++save;
        }
    }

private:
    struct Piece {
        long first, end;  // rows
        long save;        // the first that is not before these rows
        long column;
    };

    // Columns that advance together with this one.
    long columns_at(long column) const {
        const bool recalls = args_.update && sequence_.end - sequence_.first > 1;
        long count = (recalls ? kRecalledVectors : kStateVectors) * kLanes;
        while (count > end_column_ - column) count /= 2;
        return count;
    }

    StateColumns in_slot(long slot, long column) const {
        float* const state = args_.states + (slot * args_.num_heads + head_) * args_.key_dim * args_.value_dim;
        return {state + column, args_.value_dim};
    }

    StateColumns in_source(long column) const {
        static float zeros[kStateVectors * kLanes];
        return sequence_.source < 0 ? StateColumns{zeros, 0} : in_slot(sequence_.source, column);
    }

    StateColumns in_scratch(const RecurrenceScratch& scratch, long column) const {
        return {scratch.state + (column - first_column_) * args_.key_dim, columns_at(column)};
    }

    void prepare(long first, long end, const RecurrenceScratch& scratch) const {
        for (long row = first; row < end; ++row) {
            const long to = (row - first) * args_.key_dim;
            const long query = row * args_.query_stride + key_head_ * args_.query_head_stride;
            const long key = row * args_.key_stride + key_head_ * args_.key_head_stride;
            load_vector(static_cast<const Element*>(args_.query) + query, args_.query_scale, scratch.queries + to);
            load_vector(static_cast<const Element*>(args_.key) + key, 1.0f, scratch.keys + to);
        }
        const Vec rate = splat(args_.rates[head_]), bias = splat(args_.biases[head_]);
        for (long row = first; row < end; row += kLanes) {
            const int count = static_cast<int>(end - row < kLanes ? end - row : kLanes);
            const Vec step = limited(softplus_of(add(inputs_of(args_.decay, args_.decay_stride, row, count), bias)));
            store(scratch.factors + row - first, exp_of(multiply(step, rate)));
            Vec share = step;
            if (args_.update) share = times_sigmoid(splat(1.0f), inputs_of(args_.update, args_.update_stride, row, count));
            store(scratch.shares + row - first, share);
        }
    }

    void load_vector(const Element* from, float scale, float* to) const {
        Vec squares = splat(0.0f);
        for (long i = 0; i < args_.key_dim; i += kLanes) {
            const Vec v = F::widen(from + i);
            squares = multiply_add(v, v, squares);
        }
        const Vec factor = splat(args_.normalize ? scale / __builtin_sqrtf(sum_of_lanes(squares) + args_.epsilon) : scale);
        for (long i = 0; i < args_.key_dim; i += kLanes) store(to + i, multiply(F::widen(from + i), factor));
    }

    // NaN stays NaN.
    Vec limited(Vec step) const {
        const Vec zero = splat(0.0f), below = maximum_of(splat(-args_.most_step), subtract(zero, step));
        return maximum_of(splat(args_.least_step), subtract(zero, below));
    }

    // This head's input of `count` rows.
    Vec inputs_of(const void* numbers, long stride, long row, int count) const {
        float lanes[kLanes];
        with_number_type(args_.input_type, [&](auto number) {
            using Number = decltype(number);
            typename Number::Element gathered[kLanes] = {};
            for (int i = 0; i < count; ++i)
                gathered[i] = static_cast<const typename Number::Element*>(numbers)[(row + i) * stride + head_];
            store(lanes, Number::widen(gathered));
            return 0;
        });
        return load(lanes);
    }

    template <int kVectors, bool kDelta>
    void advance_as(const Piece& piece, const RecurrenceScratch& scratch) const {
        if constexpr (kVectors > 1)
            if (columns_at(piece.column) < kVectors * kLanes) return advance_as<kVectors / 2, kDelta>(piece, scratch);
        advance_columns<kVectors, kDelta>(piece, scratch);
    }

    template <int kVectors, bool kDelta>
    void advance_columns(const Piece& piece, const RecurrenceScratch& scratch) const {
        const StateColumns own = in_scratch(scratch, piece.column);
        StateColumns from = piece.first == sequence_.first ? in_source(piece.column) : own;
        const long key_dim = args_.key_dim, last_slot = args_.save_slots[sequence_.end_save - 1];
        long save = piece.save;
        Vec values[kVectors], recalled[kVectors], added[kVectors], output[kVectors];
        if (kDelta) recall<kVectors>(scratch.keys, from, key_dim, recalled);
        for (long row = piece.first; row < piece.end; ++row) {
            const long i = row - piece.first;
            const Vec factor = splat(scratch.factors[i]), share = splat(scratch.shares[i]);
            load_values<kVectors>(row, piece.column, values);
            for (int v = 0; v < kVectors; ++v)
                added[v] = multiply(share, kDelta ? subtract(values[v], multiply(factor, recalled[v])) : values[v]);
            const StateColumns to = row + 1 == sequence_.end ? in_slot(last_slot, piece.column) : own;
            const float *const key = scratch.keys + i * key_dim, *const query = scratch.queries + i * key_dim;
            const StateChange change{factor, key, query, key + key_dim};
            if (kDelta && row + 1 < piece.end)
                advance<kVectors, kDelta>(change, from, to, key_dim, added, output, recalled);
            else
                advance<kVectors, false>(change, from, to, key_dim, added, output, recalled);
            store_outputs<kVectors>(row, piece.column, values, output);
            for (; save < sequence_.end_save && args_.save_rows[save] == row; ++save)
                copy<kVectors>(to, in_slot(args_.save_slots[save], piece.column));
            from = own;
        }
    }

    template <int kVectors>
    void load_values(long row, long column, Vec* values) const {
        const Element* const from =
            static_cast<const Element*>(args_.value) + row * args_.value_stride + head_ * args_.value_head_stride + column;
        for (int v = 0; v < kVectors; ++v) values[v] = F::widen(from + v * kLanes);
    }

    template <int kVectors>
    void store_outputs(long row, long column, const Vec* values, const Vec* outputs) const {
        Element* const to = static_cast<Element*>(args_.output) + (row * args_.num_heads + head_) * args_.value_dim + column;
        for (int v = 0; v < kVectors; ++v)
            F::narrow(to + v * kLanes, args_.skips ? multiply_add(splat(args_.skips[head_]), values[v], outputs[v]) : outputs[v]);
    }

    template <int kVectors>
    void copy(StateColumns from, StateColumns to) const {
        if (from.at == to.at) return;
        for (long i = 0; i < args_.key_dim; ++i)
            for (int v = 0; v < kVectors; ++v)
                store(to.at + i * to.stride + v * kLanes, load(from.at + i * from.stride + v * kLanes));
    }

    const RinglineRecurrence& args_;
    const StateSequence sequence_;
    const long head_, key_head_, first_column_, end_column_;
};

// Heads of sequences as work: whole, or cut into parts if they are few for the threads.
template <class F>
class RecurrenceWork {
public:
    RecurrenceWork(const RinglineRecurrence& args, int threads) : args_(args), columns_(args.value_dim) {
        while (size() < kLeastPerThread * threads && columns_ % (2 * kLeastColumns) == 0) columns_ /= 2;
    }

    long size() const { return long{args_.num_seqs} * args_.num_heads * parts(); }

    RecurrenceOfHead<F> operator[](long item) const {
        const long head = item / parts(), column = item % parts() * columns_;
        return {args_, sequence_of(args_, head / args_.num_heads), head % args_.num_heads, column, column + columns_};
    }

private:
    static constexpr long kLeastPerThread = 4, kLeastColumns = 64;

    long parts() const { return args_.value_dim / columns_; }

    const RinglineRecurrence& args_;
    long columns_;  // of a part
};

template <class F>
int advance_states(const RinglineRecurrence& args) {
    const long numbers = rows_of(args) * args.num_heads * args.key_dim * args.value_dim;
    const int threads = threads_worth(numbers / kAdvancedPerNanosecond, args.num_threads);
    const RecurrenceWork<F> work(args, threads);
    return for_each_with_memory(threads, work.size(), RecurrenceScratch::bytes(args), [&](long item, char* memory) {
        work[item].run(RecurrenceScratch(memory, args));
    });
}

inline int recurrence(const RinglineRecurrence& args) {
    return with_number_type(args.number_type, [&](auto number) { return advance_states<decltype(number)>(args); });
}

}  // namespace
