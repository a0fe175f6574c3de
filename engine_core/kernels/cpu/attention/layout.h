// The cache's layout of keys and values, and how a step's rows are written to it.
//
// A block is [Hkv][keys, values][units][U · D]; the caller gives the stride of blocks. A *unit* holds U tokens: 16, or fewer
// if the block size is no multiple of 16. Within a unit, with P numbers packed (2 for bfloat16, else 1):
// keys are [D / P][U][P], so that a vector holds the same dimensions of neighbouring tokens;
// values are [U / P][D][P], so that it holds neighbouring dimensions of the same tokens.
// A cache of latents has only keys, whose first R dimensions are the values: they are rearranged when needed.
//
// In an 8-bit cache, numbers are codes (attention/codes.h), and their scales, [U] bfloat16, follow a unit's codes; for
// latents, scales of latents, [U], then of rotated parts, [U]. So they are read ahead with the codes.
#pragma once

#include "attention/codes.h"
#include "interface.h"

namespace {

constexpr int kUnit = 16;
constexpr int kTileKeys = 128;
constexpr int kSplitTiles = 4;

// Neighbouring units of one sequence and head: kTileKeys places for tokens, U to a unit. Where U divides kTileKeys and
// the block size, the places do not depend on the block size.
template <class F>
struct KeyTile {
    const typename F::Element* keys[kTileKeys / F::kPack];
    const typename F::Element* values[kTileKeys / F::kPack];
    // As much memory again, read ahead while these units are computed.
    const typename F::Element* keys_ahead[kTileKeys / F::kPack];
    const typename F::Element* values_ahead[kTileKeys / F::kPack];
    int count[kTileKeys / F::kPack];  // tokens in each unit
    int units = 0;
    int first_unit = 0;   // the first visible one
    int unit_tokens = 0;  // U
    int position = 0;     // of the first token
    int end = 0;          // position of the next tile's first token
    bool gaps = false;    // whether any unit but the last is not full

    int places() const { return units * unit_tokens; }

    // The place after the first `tokens` ≥ 1 tokens, or after all if there are fewer.
    int place_after(int tokens) const {
        int unit = 0;
        if (!gaps) {
            unit = (tokens - 1) / unit_tokens;
            unit = unit < units - 1 ? unit : units - 1;
            tokens -= unit * unit_tokens;
        }
        for (; unit < units - 1 && tokens > count[unit]; ++unit) tokens -= count[unit];
        return unit * unit_tokens + (tokens < count[unit] ? tokens : count[unit]);
    }
};

template <class F>
class Cache {
    using Element = typename F::Element;
    using Input = typename F::Number::Element;  // as written

public:
    explicit Cache(const RinglineAttention& args)
        : base_(static_cast<Element*>(args.cache)),
          block_stride_(args.block_stride),
          head_dim_(args.head_dim),
          block_size_(args.block_size),
          units_per_block_((args.block_size + kUnit - 1) / kUnit),
          latent_dim_(args.latent_dim),
          planes_(args.latent_dim > 0 ? 1 : 2) {
        const int even = (block_size_ + units_per_block_ - 1) / units_per_block_;
        unit_tokens_ = (even + F::kPack - 1) / F::kPack * F::kPack;
        tile_units_ = kTileKeys / unit_tokens_;
        const long scales = F::kCoded ? (latent_dim_ > 0 ? 2 : 1) * sizeof(uint16_t) : 0;
        unit_elements_ = unit_tokens_ * (head_dim_ + scales);
    }

    // Find a sequence's tile by number; tokens `first_key` … `end` − 1 are visible.
    void find_tile(const int32_t* block_table, int kv_head, int number, int first_key, int end, KeyTile<F>& tile) const {
        int block = number * tile_units_ / units_per_block_;
        int unit = number * tile_units_ % units_per_block_;
        const int before = unit_at(first_key) - number * tile_units_;
        tile.units = 0;
        tile.first_unit = before > 0 ? before : 0;
        tile.unit_tokens = unit_tokens_;
        tile.position = tile_position(number);
        tile.end = tile_position(number + 1);
        tile.gaps = false;
        for (; tile.units < tile_units_; ++tile.units) {
            const int offset = unit * unit_tokens_;
            const int first = block * block_size_ + offset;
            if (first >= end) return;
            if (tile.units > 0) tile.gaps = tile.gaps || tile.count[tile.units - 1] < unit_tokens_;
            Element* const start = unit_start(block_table[block], kv_head, unit);
            tile.keys[tile.units] = start;
            tile.values[tile.units] = start + values_offset();
            tile.count[tile.units] = least(least(unit_tokens_, block_size_ - offset), end - first);
            if (++unit == units_per_block_) {
                unit = 0;
                ++block;
            }
        }
    }

    // Position of a tile's first token.
    int tile_position(int number) const {
        const int unit = number * tile_units_;
        return unit / units_per_block_ * block_size_ + unit % units_per_block_ * unit_tokens_;
    }

    // Numbers of the unit, tile and split that contain a position.
    int unit_at(int position) const {
        return position / block_size_ * units_per_block_ + position % block_size_ / unit_tokens_;
    }
    int tile_at(int position) const { return unit_at(position) / tile_units_; }
    int split_at(int position) const { return tile_at(position) / kSplitTiles; }

    // The first unit of a split.
    int first_unit(int split) const { return split * kSplitTiles * tile_units_; }

    // Start of a unit's keys; its values are values_offset() elements further.
    const Element* keys(const int32_t* block_table, int kv_head, int unit) const {
        return unit_start(block_table[unit / units_per_block_], kv_head, unit % units_per_block_);
    }
    // Bytes of a unit's keys and values.
    long unit_bytes() const { return planes_ * unit_elements_ * static_cast<long>(sizeof(Element)); }
    long values_offset() const { return (planes_ - 1) * units_per_block_ * unit_elements_; }

    // Store the latents [count, R] and rotated parts [count, P] at positions first … first + count − 1.
    void write_latents(const int32_t* block_table, int first, int count, const Input* latent, long latent_stride,
                       const Input* rope, long rope_stride) const {
        for (int run; count > 0; first += run, count -= run, latent += run * latent_stride, rope += run * rope_stride) {
            const int block = first / block_size_, offset = first % block_size_, place = offset % unit_tokens_;
            run = least(least(unit_tokens_ - place, block_size_ - offset), count);
            Element* const unit = unit_start(block_table[block], 0, offset / unit_tokens_);
            uint16_t* const scale = scales(unit) + place;
            const Rows parts[2] = {{latent, latent_stride, latent_dim_}, {rope, rope_stride, head_dim_ - latent_dim_}};
            with_stored(parts[0], run, scale, [&](const Element* from, long stride) {
                write_keys(unit, place, run, from, stride, latent_dim_);
            });
            with_stored(parts[1], run, scale + unit_tokens_, [&](const Element* from, long stride) {
                write_keys(unit + latent_dim_ * unit_tokens_, place, run, from, stride, head_dim_ - latent_dim_);
            });
        }
    }

    // Store the keys and values [count] of one head at positions first … first + count − 1.
    void write(const int32_t* block_table, int kv_head, int first, int count, const Input* key, long key_stride,
               const Input* value, long value_stride) const {
        while (count > 0) {
            const int block = first / block_size_, offset = first % block_size_;
            const int place = offset % unit_tokens_;
            const int run = least(least(unit_tokens_ - place, block_size_ - offset), count);
            Element* const unit = unit_start(block_table[block], kv_head, offset / unit_tokens_);
            Element* const values = unit + values_offset();
            with_stored({key, key_stride, head_dim_}, run, scales(unit) + place, [&](const Element* from, long stride) {
                write_keys(unit, place, run, from, stride, head_dim_);
            });
            with_stored({value, value_stride, head_dim_}, run, scales(values) + place, [&](const Element* from, long stride) {
                write_values(values, place, run, from, stride);
            });
            key += run * key_stride;
            value += run * value_stride;
            first += run;
            count -= run;
        }
    }

private:
    static int least(int a, int b) { return a < b ? a : b; }

    // Numbers of neighbouring tokens.
    struct Rows {
        const Input* start;
        long stride, dims;
    };

    // Call write(stored rows, their stride) for at most kUnit tokens: `rows` themselves, or their codes, whose scales
    // are stored here.
    template <class Write>
    static void with_stored(const Rows& rows, int tokens, uint16_t* scale, const Write& write) {
        if constexpr (F::kCoded) {
            uint8_t codes[kUnit * kMostHeadDim];
            for (int token = 0; token < tokens; ++token)
                scale[token] = F::encode(rows.start + token * rows.stride, rows.dims, codes + token * rows.dims);
            write(codes, rows.dims);
        } else {
            write(rows.start, rows.stride);
        }
    }

    // The scales of a unit of keys, or of values.
    uint16_t* scales(Element* unit) const { return reinterpret_cast<uint16_t*>(unit + unit_tokens_ * head_dim_); }

    Element* unit_start(long block, int kv_head, int unit) const {
        return base_ + block * block_stride_ + (planes_ * kv_head * units_per_block_ + unit) * unit_elements_;
    }
    void write_keys(Element* __restrict unit, int place, int run, const Element* __restrict key, long stride, long dims) const {
        // A few dimensions at a time: rows may lie so far apart that no two stay in the L1 cache.
        constexpr int kDims = 16;
        for (long first = 0; first < dims; first += kDims)
            for (int token = 0; token < run; ++token) {
                const Element* const from = key + token * stride + first;
                Element* const to = unit + first * unit_tokens_ + (place + token) * F::kPack;
                for (int d = 0; d < kDims; d += F::kPack)
                    std::memcpy(to + d * unit_tokens_, from + d, F::kPack * sizeof(Element));
            }
    }

    void write_values(Element* __restrict unit, int place, int run, const Element* __restrict value, long stride) const {
        for (int token = 0; token < run;) {
            const int at = place + token;
            Element* const to = unit + at / F::kPack * F::kPack * head_dim_ + at % F::kPack;
            const Element* const from = value + token * stride;
            const bool pair = F::kPack == 2 && at % 2 == 0 && token + 1 < run;
            if (pair)
                for (long d = 0; d < head_dim_; ++d) {
                    to[2 * d] = from[d];
                    to[2 * d + 1] = from[stride + d];
                }
            else
                for (long d = 0; d < head_dim_; ++d) to[d * F::kPack] = from[d];
            token += pair ? 2 : 1;
        }
    }

    Element* base_;
    long block_stride_;
    long head_dim_;
    int block_size_;
    int units_per_block_;
    long latent_dim_;
    long planes_;      // 2: keys and values; 1: latents
    int unit_tokens_;  // U
    int tile_units_;
    long unit_elements_;  // of a unit's keys, or of its values
};

}  // namespace
