// The pieces that a thread computes, and the memory that it reads ahead.
//
// Memory reaches full bandwidth only if requested long before use. So a thread looks some units ahead of its computation,
// past the ends of pieces: sequences may be short.
#pragma once

#include "attention/partition.h"

namespace {

// A query tile, and the splits first … last − 1 of its keys.
struct Piece {
    int tile;  // index in the division
    QueryTile q;
    int first_split, last_split;
};

// Query tiles as pieces: whole, or cut into their splits.
template <class F>
class Pieces {
public:
    Pieces(const Division& division, const Cache<F>& cache) : division_(division), cache_(cache) {
        if (division.size() >= 2 * division.threads()) return;
        for (int tile = 0; tile < division.size(); ++tile) {
            const QueryTile q = division[tile];
            const int splits = end_split(q) - first_split(q);
            most_splits_ = splits > most_splits_ ? splits : most_splits_;
        }
    }

    // Whether query tiles are cut, because there are few for the threads.
    bool cut() const { return most_splits_ > 1; }
    // The most splits of a cut query tile.
    int most_splits() const { return most_splits_; }

    // A query tile sees splits first_split … end_split − 1.
    int first_split(const QueryTile& q) const { return cache_.split_at(division_.window().first_key(q.position)); }
    int end_split(const QueryTile& q) const { return cache_.split_at(q.end - 1) + 1; }

    // Some pieces of cut query tiles are empty.
    int size() const { return division_.size() * most_splits_; }

    Piece operator[](int index) const {
        const int tile = index / most_splits_;
        const QueryTile q = division_[tile];
        const int first = first_split(q), end = end_split(q);
        if (!cut()) return {tile, q, first, end};
        const int split = first + index % most_splits_;
        return {tile, q, split, split < end ? split + 1 : split};
    }

private:
    const Division& division_;
    const Cache<F>& cache_;
    int most_splits_ = 1;
};

template <class F>
class Queue {
    using Element = typename F::Element;

public:
    // Threads share `next`, the first piece not yet taken.
    Queue(const Pieces<F>& pieces, const Cache<F>& cache, const RinglineAttention& args, long& next)
        : pieces_(pieces), cache_(cache), args_(args), window_(args), next_(next) {
        const long units = kBytesAhead / cache.unit_bytes();
        for (long unit = 0; unit < units && unit < kMostUnitsAhead; ++unit) look_ahead();
    }

    // The next piece to compute; false at the end.
    bool take(Piece& piece) {
        if (first_ == end_) return false;
        piece = seen_[first_++ % kCapacity];
        return true;
    }

    // Find as much memory to read ahead as the tile has.
    void look_ahead(KeyTile<F>& tile) {
        for (int unit = tile.first_unit; unit < tile.units; ++unit) {
            const Element* const keys = look_ahead();
            tile.keys_ahead[unit] = keys ? keys : tile.keys[unit];
            tile.values_ahead[unit] = keys ? keys + cache_.values_offset() : tile.values[unit];
        }
    }

private:
    static constexpr long kBytesAhead = 160 << 10;  // measured: beyond 128 KiB it hardly matters; must fit the L2 cache
    static constexpr unsigned kMostUnitsAhead = 64;
    static constexpr unsigned kCapacity = 2 * kMostUnitsAhead;  // of pieces seen but not taken

    // The keys of the next unit not yet seen; null at the end.
    const Element* look_ahead() {
        while (unit_ == end_unit_) {
            const long index = ::take(next_);
            if (index >= pieces_.size()) return nullptr;
            const Piece piece = pieces_[static_cast<int>(index)];
            if (piece.first_split == piece.last_split) continue;
            seen_[end_++ % kCapacity] = piece;
            const int units = cache_.unit_at(piece.q.end - 1) + 1, limit = cache_.first_unit(piece.last_split);
            const int first = cache_.first_unit(piece.first_split), seen = cache_.unit_at(window_.first_key(piece.q.position));
            unit_ = seen > first ? seen : first;
            end_unit_ = limit < units ? limit : units;
            block_table_ = args_.block_tables + piece.q.sequence * args_.block_table_stride;
            kv_head_ = piece.q.kv_head;
        }
        return cache_.keys(block_table_, kv_head_, unit_++);
    }

    const Pieces<F>& pieces_;
    const Cache<F>& cache_;
    const RinglineAttention& args_;
    const Window window_;
    long& next_;
    Piece seen_[kCapacity];
    unsigned first_ = 0, end_ = 0;
    const int32_t* block_table_ = nullptr;
    int kv_head_ = 0, unit_ = 0, end_unit_ = 0;
};

}  // namespace
