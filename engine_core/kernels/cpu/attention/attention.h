// Paged attention over one step.
//
// A row's arithmetic depends only on its own sequence: keys are taken in tiles at fixed places, tiles in splits of fixed
// size; each split is summed separately, and splits are merged in order. Which rows share a query tile, and which thread
// computes it, does not change results. Rows that see nothing of a tile of keys skip it; tokens that a row does not see
// have weight 0, which changes no sum. Units before the windows of all rows of a query tile are not read: their blocks
// may belong to other sequences.
#pragma once

#include "attention/expand.h"
#include "attention/latents.h"
#include "attention/prefetch.h"
#include "attention/softmax.h"

namespace {

// A thread's memory for one query tile. S is the cache's number type, F the type of computation.
template <class S>
struct Scratch {
    using F = typename S::Number;

    // Elements of the parts.
    struct Sizes {
        long rows, head_dim, value_dim;
        long rearranged;  // a tile of latents as values, or of an 8-bit cache's values
        long expanded;    // a tile of an 8-bit cache's keys
        long scales;      // of such a tile
        long rope_scores;
    };

    Scratch(char* memory, const Sizes& sizes) {
        Parts parts(memory);
        queries = parts.take<typename F::Factor>(sizes.rows * sizes.head_dim);
        keys = parts.take<typename F::Element>(sizes.expanded);
        values = parts.take<typename F::Element>(sizes.rearranged);
        scales = parts.take<float>(sizes.scales);
        rope_scores = parts.take<float>(sizes.rope_scores);
        scores = parts.take<float>(sizes.rows * kScoreStride);
        weights = parts.take<typename F::Factor>(sizes.rows * kTileKeys);
        decays = parts.take<float>(sizes.rows);
        const long state = RowState::bytes(sizes.rows, sizes.value_dim);
        whole = RowState(parts.take<char>(state), sizes.rows, sizes.value_dim);
        split = RowState(parts.take<char>(state), sizes.rows, sizes.value_dim);
    }
    static long bytes(const Sizes& sizes) {
        return padded_bytes<typename F::Factor>(sizes.rows * sizes.head_dim) +
               padded_bytes<typename F::Element>(sizes.expanded) + padded_bytes<typename F::Element>(sizes.rearranged) +
               padded_bytes<float>(sizes.scales) + padded_bytes<float>(sizes.rope_scores) +
               padded_bytes<float>(sizes.rows * kScoreStride) + padded_bytes<typename F::Factor>(sizes.rows * kTileKeys) +
               padded_bytes<float>(sizes.rows) + 2 * RowState::bytes(sizes.rows, sizes.value_dim);
    }

    typename F::Factor* queries;  // [rows, D]
    typename F::Element *keys, *values;  // of a tile
    float* scales;                // [2, kScoreStride]: of a tile's keys and values, or of latents and rotated parts
    float* rope_scores;           // [rows, kScoreStride]: scores of rotated parts
    float* scores;                // [rows, kScoreStride]
    typename F::Factor* weights;  // [rows, kTileKeys]
    float* decays;                // [rows]
    RowState whole, split;
    KeyTile<S> tile;
    KeyTile<F> numbers;  // the tile of an 8-bit cache, expanded
};

template <class S>
class Step {
    using F = typename S::Number;
    using Element = typename F::Element;
    using Factor = typename F::Factor;

public:
    explicit Step(const RinglineAttention& args)
        : args_(args),
          cache_(args),
          division_(args),
          pieces_(division_, cache_),
          head_dim_(args.head_dim),
          value_dim_(args.latent_dim > 0 ? args.latent_dim : args.head_dim),
          group_(args.num_heads / args.num_kv_heads) {}

    // Returns 0, or 1 when there is no memory.
    int run() {
        if (division_.failed()) return 1;
        const long rows = division_.rows();
        const bool latents = args_.latent_dim > 0, coded = S::kCoded;
        const typename Scratch<S>::Sizes sizes = {
            rows, head_dim_, value_dim_, latents || coded ? kTileKeys * value_dim_ : 0, coded ? kTileKeys * head_dim_ : 0,
            coded ? 2 * kScoreStride : 0, latents && coded ? rows * kScoreStride : 0};
        const long bytes = Scratch<S>::bytes(sizes);
        const Buffer scratch(division_.threads() * bytes);
        const Buffer states(pieces_.cut() ? pieces_.size() * RowState::bytes(rows, value_dim_) : 1);
        if (scratch.failed() || states.failed()) return 1;
        if (keys_first()) parallel_for(division_.threads(), division_.size(), 1, [&](long tile) { write(division_[tile]); });
        long next = 0;
        in_parallel(division_.threads(), [&](int thread) {
            Scratch<S> own(scratch.at(thread * bytes), sizes);
            Queue<S> queue(pieces_, cache_, args_, next);
            if (pieces_.cut())
                attend_in_pieces(queue, states, own);
            else
                attend_whole(queue, own);
        });
        if (pieces_.cut()) parallel_for(division_.threads(), division_.size(), 1, [&](long tile) { merge_all(tile, states); });
        return 0;
    }

private:
    // Whether a piece may need keys of another's rows: then all are written before the first piece begins.
    bool keys_first() const { return args_.key && (division_.several() || pieces_.cut()); }

    void attend_whole(Queue<S>& queue, Scratch<S>& scratch) const {
        for (Piece piece; queue.take(piece);) {
            load_queries(piece.q, scratch.queries);
            for (int split = piece.first_split; split < piece.last_split; ++split) {
                const bool first = split == piece.first_split;
                sum_split(piece.q, split, first ? scratch.whole : scratch.split, queue, scratch);
                if (!first) merge_split(piece.q, split, scratch.whole, scratch.split);
            }
            finish_tile(piece.q, scratch.whole);
        }
    }

    void attend_in_pieces(Queue<S>& queue, const Buffer& states, Scratch<S>& scratch) const {
        for (Piece piece; queue.take(piece);) {
            load_queries(piece.q, scratch.queries);
            sum_split(piece.q, piece.first_split, state_of(states, piece.tile, piece.q, piece.first_split), queue, scratch);
        }
    }

    void merge_all(long tile, const Buffer& states) const {
        const QueryTile q = division_[tile];
        const int first = pieces_.first_split(q);
        const RowState whole = state_of(states, tile, q, first);
        for (int split = first + 1; split < pieces_.end_split(q); ++split)
            merge_split(q, split, whole, state_of(states, tile, q, split));
        finish_tile(q, whole);
    }

    RowState state_of(const Buffer& states, long tile, const QueryTile& q, int split) const {
        const long bytes = RowState::bytes(division_.rows(), value_dim_), place = split - pieces_.first_split(q);
        return RowState(states.at((tile * pieces_.most_splits() + place) * bytes), division_.rows(), value_dim_);
    }

    void write(const QueryTile& q) const {
        const long head = q.kv_head * head_dim_;
        if (args_.latent_dim > 0)
            return cache_.write_latents(block_table(q), q.position, q.count,
                                        static_cast<const Element*>(args_.key) + q.row * args_.key_stride, args_.key_stride,
                                        static_cast<const Element*>(args_.value) + q.row * args_.value_stride,
                                        args_.value_stride);
        cache_.write(block_table(q), q.kv_head, q.position, q.count,
                     static_cast<const Element*>(args_.key) + q.row * args_.key_stride + head, args_.key_stride,
                     static_cast<const Element*>(args_.value) + q.row * args_.value_stride + head, args_.value_stride);
    }

    void load_queries(const QueryTile& q, Factor* queries) const {
        if (args_.latent_dim > 0) return load_latent_queries(q, queries);
        const long heads = group_ * head_dim_;
        const auto* const first = static_cast<const Element*>(args_.query) + q.row * args_.query_stride + q.kv_head * heads;
        for (int i = 0; i < q.count; ++i) F::load_factors(queries + i * heads, first + i * args_.query_stride, heads);
    }

    void load_latent_queries(const QueryTile& q, Factor* queries) const {
        const long latent = args_.latent_dim, rope = head_dim_ - latent;
        for (int row = 0; row < q.count * group_; ++row) {
            const long step_row = q.row + row / group_, head = row % group_;
            const auto* const first = static_cast<const Element*>(args_.query) + step_row * args_.query_stride + head * latent;
            const auto* const second = static_cast<const Element*>(args_.query_rope) + step_row * args_.query_rope_stride +
                                       head * args_.query_rope_head_stride;
            F::load_factors(queries + row * head_dim_, first, latent);
            F::load_factors(queries + row * head_dim_ + latent, second, rope);
        }
    }

    // Sum one split of a query tile's keys.
    void sum_split(const QueryTile& q, int split, const RowState& state, Queue<S>& queue, Scratch<S>& scratch) const {
        state.clear(q.count * group_, value_dim_);
        const int first_key = window().first_key(q.position), first_tile = cache_.tile_at(first_key);
        const int tiles = cache_.tile_at(q.end - 1) + 1;
        int number = split * kSplitTiles > first_tile ? split * kSplitTiles : first_tile;
        for (; number < tiles && number < (split + 1) * kSplitTiles; ++number) {
            cache_.find_tile(block_table(q), q.kv_head, number, first_key, q.end, scratch.tile);
            queue.look_ahead(scratch.tile);
            // As late as possible: by now, its memory has been read ahead.
            if (args_.key && !keys_first() && number == cache_.tile_at(q.position)) write(q);
            add_tile(q, state, scratch);
        }
    }

    void add_tile(const QueryTile& q, const RowState& state, Scratch<S>& scratch) const {
        KeyTile<S>& tile = scratch.tile;
        const int first = first_row(q, tile.position), rows = end_row(q, tile.end) - first;
        const RowState seeing = state.from(first, value_dim_);
        compute_tile_scores(scratch.queries + first * head_dim_, rows, scratch);
        for (int row = 0; row < rows; ++row) {
            float* const scores = scratch.scores + row * kScoreStride;
            const int place = (first + row) / group_, position = q.position + place;
            const int before = window().first_key(position) - tile.position;
            if (args_.logit_softcap > 0.0f) cap_scores(scores, tile, args_.scale, args_.logit_softcap);
            const int seen = limits().end(q.row + place, position) - tile.position;
            mask_scores(scores, tile, before > 0 ? tile.place_after(before) : 0, tile.place_after(seen));
            const float* const value_scales = scratch.scales + (args_.latent_dim > 0 ? 0 : kScoreStride);
            scratch.decays[row] = weigh<S>(scores, first_place(tile), tile.places(), exponent_scale(),
                                           seeing.from(row, value_dim_), value_scales, scratch.weights + row * kTileKeys);
        }
        add_tile_values(rows, seeing.output, scratch);
    }

    // Whether products expand an 8-bit cache's codes on the fly: for more rows, they are expanded once for all.
    bool multiplies_codes(int rows) const { return S::kCoded && args_.latent_dim == 0 && rows <= kBlockRows; }

    void compute_tile_scores(const Factor* queries, int rows, Scratch<S>& scratch) const {
        const KeyTile<S>& tile = scratch.tile;
        if constexpr (!S::kCoded) {
            compute_scores<F>(queries, rows, head_dim_, head_dim_, tile, scratch.scores);
        } else {
            load_scales(tile, head_dim_, args_.latent_dim > 0, scratch.scales);
            if (multiplies_codes(rows)) {
                compute_scores<S>(queries, rows, head_dim_, head_dim_, tile, scratch.scores);
            } else {
                expand_keys(tile, head_dim_, scratch.keys, scratch.numbers);
                if (args_.latent_dim > 0) return compute_latent_scores(queries, rows, scratch);
                compute_scores<F>(queries, rows, head_dim_, head_dim_, scratch.numbers, scratch.scores);
            }
            for (int row = 0; row < rows; ++row) scale_scores(scratch.scores + row * kScoreStride, tile, scratch.scales);
        }
    }

    // For an 8-bit cache: both parts of a latent's key have their own scales.
    void compute_latent_scores(const Factor* queries, int rows, Scratch<S>& scratch) const {
        const long latent = args_.latent_dim;
        compute_scores<F>(queries, rows, head_dim_, latent, scratch.numbers, scratch.scores);
        KeyTile<F> rope = scratch.numbers;
        for (int unit = rope.first_unit; unit < rope.units; ++unit) rope.keys[unit] += latent * rope.unit_tokens;
        compute_scores<F>(queries + latent, rows, head_dim_, head_dim_ - latent, rope, scratch.rope_scores);
        for (int row = 0; row < rows; ++row) {
            float* const scores = scratch.scores + row * kScoreStride;
            float* const others = scratch.rope_scores + row * kScoreStride;
            scale_scores(scores, scratch.tile, scratch.scales);
            scale_scores(others, scratch.tile, scratch.scales + kScoreStride);
            for (int place = 0; place < kScoreStride; place += kLanes)
                store(scores + place, add(load(scores + place), load(others + place)));
        }
    }

    void add_tile_values(int rows, float* outputs, Scratch<S>& scratch) const {
        if constexpr (!S::kCoded) {
            if (args_.latent_dim > 0) rearrange_latents(scratch.tile, value_dim_, scratch.values);
            add_values<F>(scratch.weights, scratch.decays, rows, value_dim_, scratch.tile, outputs);
        } else if (multiplies_codes(rows)) {
            add_values<S>(scratch.weights, scratch.decays, rows, value_dim_, scratch.tile, outputs);
        } else {
            if (args_.latent_dim > 0)
                rearrange_latents(scratch.numbers, value_dim_, scratch.values);
            else
                expand_values(scratch.tile, value_dim_, scratch.values, scratch.numbers);
            add_values<F>(scratch.weights, scratch.decays, rows, value_dim_, scratch.numbers, outputs);
        }
    }

    void merge_split(const QueryTile& q, int split, const RowState& earlier, const RowState& later) const {
        const int first = first_row(q, cache_.tile_position(split * kSplitTiles));
        const int end = end_row(q, cache_.tile_position((split + 1) * kSplitTiles));
        for (int row = first; row < end; ++row)
            merge(earlier.from(row, value_dim_), later.from(row, value_dim_), value_dim_, exponent_scale());
    }

    void finish_tile(const QueryTile& q, const RowState& state) const {
        for (int row = 0; row < q.count * group_; ++row) {
            const long head = q.kv_head * group_ + row % group_, place = (q.row + row / group_) * args_.output_stride + head * value_dim_;
            const RowState own = state.from(row, value_dim_);
            const float share = share_of_weights(own, exponent_scale(), args_.sinks ? args_.sinks + head : nullptr);
            finish<F>(own, value_dim_, share, static_cast<Element*>(args_.output) + place);
        }
    }

    const int32_t* block_table(const QueryTile& q) const { return args_.block_tables + q.sequence * args_.block_table_stride; }

    // Score rows of a query tile that see positions in [begin, end): first_row … end_row − 1.
    int first_row(const QueryTile& q, int begin) const {
        return limits().rows_before(begin, q.row, q.position, q.count) * group_;
    }
    int end_row(const QueryTile& q, int end) const { return window().rows_seeing(end - 1, q.position, q.count) * group_; }

    Window window() const { return division_.window(); }
    Limits limits() const { return division_.limits(); }

    // Weights are powers of two: the attention's scale (which capped scores include already) times log2(e).
    float exponent_scale() const { return (args_.logit_softcap > 0.0f ? 1.0f : args_.scale) * 1.44269504088896340736f; }

    const RinglineAttention& args_;
    const Cache<S> cache_;
    const Division division_;
    const Pieces<S> pieces_;
    const long head_dim_;
    const long value_dim_;
    const int group_;
};

inline int attention(const RinglineAttention& args) {
    return with_number_type(args.number_type, [&](auto number) {
        return with_cache_type<decltype(number)>(args.cache_type, [&](auto stored) { return Step<decltype(stored)>(args).run(); });
    });
}

}  // namespace
