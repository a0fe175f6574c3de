// Attention over one step.
//
// A row's arithmetic depends on its own sequence alone: keys are taken in tiles of fixed places, tiles in splits of fixed
// size; each split is summed on its own, and splits are merged in order. Which rows share a query tile, and which thread
// computes what, decides nothing. Rows in front of a query tile that do not see a tile of keys are left out of it;
// tokens that a row does not see have weight 0, which changes no sum.
#pragma once

#include <omp.h>

#include "division.h"
#include "softmax.h"

namespace {

constexpr int kSplitTiles = 4;

// What a thread needs for one query tile.
template <class F>
struct Scratch {
    Scratch(char* memory, long rows, long head_dim) {
        Parts parts(memory);
        queries = parts.take<typename F::Factor>(rows * head_dim);
        scores = parts.take<float>(rows * kScoreStride);
        weights = parts.take<typename F::Factor>(rows * kTileKeys);
        decays = parts.take<float>(rows);
        whole = RowState(parts.take<char>(RowState::bytes(rows, head_dim)), rows, head_dim);
        split = RowState(parts.take<char>(RowState::bytes(rows, head_dim)), rows, head_dim);
    }
    static long bytes(long rows, long head_dim) {
        return padded_bytes<typename F::Factor>(rows * head_dim) + padded_bytes<float>(rows * kScoreStride) +
               padded_bytes<typename F::Factor>(rows * kTileKeys) + padded_bytes<float>(rows) +
               2 * RowState::bytes(rows, head_dim);
    }

    // Go on to the next tile.
    void advance() {
        KeyTile<F>* const done = tile;
        tile = next_tile;
        next_tile = done;
    }

    typename F::Factor* queries;  // [rows, D]
    float* scores;                // [rows, kScoreStride]
    typename F::Factor* weights;  // [rows, kTileKeys]
    float* decays;                // [rows]
    RowState whole, split;
    KeyTile<F> tiles[2];
    KeyTile<F>* tile = &tiles[0];
    KeyTile<F>* next_tile = &tiles[1];
};

template <class F>
class Step {
    using Element = typename F::Element;
    using Factor = typename F::Factor;

public:
    explicit Step(const RinglineAttention& args)
        : args_(args),
          cache_(args),
          division_(args),
          head_dim_(args.head_dim),
          group_(args.num_heads / args.num_kv_heads) {}

    // Returns 0, or 1 when there is no memory.
    int run() {
        if (division_.failed()) return 1;
        const long bytes = Scratch<F>::bytes(division_.rows(), head_dim_);
        const Buffer scratch(division_.threads() * bytes);
        const int parts = division_.size() < 2 * division_.threads() ? most_splits() : 1;
        const Buffer states(parts > 1 ? division_.size() * parts * RowState::bytes(division_.rows(), head_dim_) : 1);
        if (scratch.failed() || states.failed()) return 1;
        int next = 0;
#pragma omp parallel num_threads(division_.threads()) if (division_.threads() > 1)
        {
            Scratch<F> own(scratch.at(omp_get_thread_num() * bytes), division_.rows(), head_dim_);
            if (parts > 1)
                attend_in_parts(states, parts, own);
            else
                attend_whole(next, own);
        }
        return 0;
    }

private:
    // Each query tile by one thread. Where a sequence has several, its keys must be there before the first is begun.
    void attend_whole(int& next, Scratch<F>& scratch) const {
        if (division_.several()) write_all();
        int index = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
        find_first_tile(index, *scratch.tile);
        while (index < division_.size()) {
            const int following = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            const QueryTile q = division_[index];
            if (!division_.several()) write(q);
            load_queries(q, scratch.queries);
            for (int split = 0; split < splits_of(q); ++split) {
                sum_split(q, split, following, split == 0 ? scratch.whole : scratch.split, scratch);
                if (split > 0) merge_split(q, split, scratch.whole, scratch.split);
            }
            finish_tile(q, scratch.whole);
            index = following;
        }
    }

    // Each split of a query tile by one thread: for long sequences, when there are few query tiles.
    void attend_in_parts(const Buffer& states, int parts, Scratch<F>& scratch) const {
        const long rows = division_.rows(), bytes = RowState::bytes(rows, head_dim_);
        const auto state = [&](int index, int split) {
            return RowState(states.at((index * parts + split) * bytes), rows, head_dim_);
        };
        write_all();
#pragma omp for schedule(dynamic)
        for (int part = 0; part < division_.size() * parts; ++part) {
            const QueryTile q = division_[part / parts];
            const int split = part % parts;
            if (split >= splits_of(q)) continue;
            load_queries(q, scratch.queries);
            find_tile(q, split * kSplitTiles, *scratch.tile);
            sum_split(q, split, division_.size(), state(part / parts, split), scratch);
        }
#pragma omp for schedule(dynamic)
        for (int index = 0; index < division_.size(); ++index) {
            const QueryTile q = division_[index];
            for (int split = 1; split < splits_of(q); ++split) merge_split(q, split, state(index, 0), state(index, split));
            finish_tile(q, state(index, 0));
        }
    }

    void write_all() const {
#pragma omp for schedule(static)
        for (int index = 0; index < division_.size(); ++index) write(division_[index]);
    }

    void write(const QueryTile& q) const {
        const long head = q.kv_head * head_dim_;
        cache_.write(block_table(q), q.kv_head, q.position, q.count,
                     static_cast<const Element*>(args_.key) + q.row * args_.key_stride + head, args_.key_stride,
                     static_cast<const Element*>(args_.value) + q.row * args_.value_stride + head, args_.value_stride);
    }

    void load_queries(const QueryTile& q, Factor* queries) const {
        const long heads = group_ * head_dim_;
        const auto* const first = static_cast<const Element*>(args_.query) + q.row * args_.query_stride + q.kv_head * heads;
        for (int i = 0; i < q.count; ++i) F::load_factors(queries + i * heads, first + i * args_.query_stride, heads);
    }

    // Sum one split of the keys that a query tile sees; its first tile has been found already. After the last tile of all,
    // the first one of the `following` query tile is read ahead.
    void sum_split(const QueryTile& q, int split, int following, const RowState& state, Scratch<F>& scratch) const {
        state.clear(q.count * group_, head_dim_);
        const int tiles = cache_.tiles(q.end());
        for (int number = split * kSplitTiles; number < tiles && number < (split + 1) * kSplitTiles; ++number) {
            if (number + 1 < tiles)
                find_tile(q, number + 1, *scratch.next_tile);
            else
                find_first_tile(following, *scratch.next_tile);
            add_tile(q, state, scratch);
            scratch.advance();
        }
    }

    void add_tile(const QueryTile& q, const RowState& state, const Scratch<F>& scratch) const {
        const KeyTile<F>& tile = *scratch.tile;
        const int hidden = hidden_rows(q, tile.position), rows = q.count * group_ - hidden;
        const RowState seeing = state.from(hidden, head_dim_);
        compute_scores<F>(scratch.queries + hidden * head_dim_, rows, head_dim_, tile, scratch.scores);
        for (int row = 0; row < rows; ++row) {
            float* const scores = scratch.scores + row * kScoreStride;
            const int position = q.position + (hidden + row) / group_;
            mask_scores(scores, tile, tile.place_after(position + 1 - tile.position));
            scratch.decays[row] = weigh<F>(
                scores, tile.places(), exponent_scale(), seeing.from(row, head_dim_), scratch.weights + row * kTileKeys);
        }
        add_values<F>(scratch.weights, scratch.decays, rows, head_dim_, tile, *scratch.next_tile, seeing.output);
    }

    void merge_split(const QueryTile& q, int split, const RowState& earlier, const RowState& later) const {
        const int hidden = hidden_rows(q, cache_.tile_position(split * kSplitTiles));
        for (int row = hidden; row < q.count * group_; ++row)
            merge(earlier.from(row, head_dim_), later.from(row, head_dim_), head_dim_, exponent_scale());
    }

    void finish_tile(const QueryTile& q, const RowState& state) const {
        for (int row = 0; row < q.count * group_; ++row) {
            const long head = static_cast<long>(q.row + row / group_) * args_.num_heads + q.kv_head * group_ + row % group_;
            finish<F>(state.from(row, head_dim_), head_dim_, static_cast<Element*>(args_.output) + head * head_dim_);
        }
    }

    const int32_t* block_table(const QueryTile& q) const { return args_.block_tables + q.sequence * args_.block_table_stride; }

    void find_tile(const QueryTile& q, int number, KeyTile<F>& tile) const {
        cache_.find_tile(block_table(q), q.kv_head, number, q.end(), tile);
    }

    // The first tile of a query tile; empty if there is no such query tile.
    void find_first_tile(int index, KeyTile<F>& tile) const {
        tile.units = 0;
        if (index < division_.size()) find_tile(division_[index], 0, tile);
    }

    // How many rows of scores in front of a query tile see nothing from `position` on.
    int hidden_rows(const QueryTile& q, int position) const {
        return position > q.position ? (position - q.position) * group_ : 0;
    }

    int splits_of(const QueryTile& q) const { return (cache_.tiles(q.end()) + kSplitTiles - 1) / kSplitTiles; }

    int most_splits() const {
        int most = 1;
        for (int index = 0; index < division_.size(); ++index) {
            const int splits = splits_of(division_[index]);
            most = splits > most ? splits : most;
        }
        return most;
    }

    // Weights are powers of two: this is the attention's scale times log2(e).
    float exponent_scale() const { return args_.scale * 1.44269504088896340736f; }

    const RinglineAttention& args_;
    const Cache<F> cache_;
    const Division division_;
    const long head_dim_;
    const int group_;
};

inline int attention(const RinglineAttention& args) {
    switch (args.number_type) {
        case kRinglineFloat32: return Step<Float32>(args).run();
        case kRinglineFloat16: return Step<Float16>(args).run();
        default: return Step<BFloat16>(args).run();
    }
}

}  // namespace
