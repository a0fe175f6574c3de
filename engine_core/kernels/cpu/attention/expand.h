// Expands tiles of an 8-bit cache to numbers, and loads their scales.
#pragma once

#include "attention/softmax.h"

namespace {

// Widen a unit's scales, which follow its codes, to its places in `to`.
inline void load_scales(const uint8_t* codes_end, int tokens, float* to) {
    for (int i = 0; i < tokens; ++i) {
        uint16_t scale;
        std::memcpy(&scale, codes_end + i * sizeof scale, sizeof scale);
        const uint32_t bits = static_cast<uint32_t>(scale) << 16;
        std::memcpy(to + i, &bits, sizeof bits);
    }
}

// The scales of a tile's places: of keys, and kScoreStride further of values; over latents, of latents and of rotated
// parts.
template <class S>
void load_scales(const KeyTile<S>& tile, long dims, bool latents, float* scales) {
    const long codes = tile.unit_tokens * dims;
    for (int unit = tile.first_unit; unit < tile.units; ++unit) {
        float* const to = scales + unit * tile.unit_tokens;
        const uint8_t* const of_keys = tile.keys[unit] + codes;
        load_scales(of_keys, tile.unit_tokens, to);
        load_scales(latents ? of_keys + 2 * tile.unit_tokens : tile.values[unit] + codes, tile.unit_tokens, to + kScoreStride);
    }
}

// Multiply a row's scores by the scales of a tile's codes.
template <class S>
void scale_scores(float* scores, const KeyTile<S>& tile, const float* scales) {
    for (int place = first_place(tile); place < padded_places(tile.places()); place += kLanes)
        store(scores + place, multiply(load(scores + place), load(scales + place)));
}

// Expand the keys of a tile's visible units to `memory` [units, U · dims].
template <class S>
void expand_keys(const KeyTile<S>& tile, long dims, typename S::Number::Element* memory, KeyTile<typename S::Number>& numbers) {
    numbers.units = tile.units;
    numbers.first_unit = tile.first_unit;
    numbers.unit_tokens = tile.unit_tokens;
    for (int unit = tile.first_unit; unit < tile.units; ++unit) {
        auto* const to = memory + unit * tile.unit_tokens * dims;
        S::expand(tile.keys[unit], tile.keys_ahead[unit], tile.unit_tokens * dims, to);
        numbers.keys[unit] = numbers.keys_ahead[unit] = numbers.values_ahead[unit] = to;
        numbers.count[unit] = tile.count[unit];
    }
}

// The same for values, after the keys.
template <class S>
void expand_values(const KeyTile<S>& tile, long dims, typename S::Number::Element* memory, KeyTile<typename S::Number>& numbers) {
    for (int unit = tile.first_unit; unit < tile.units; ++unit) {
        auto* const to = memory + unit * tile.unit_tokens * dims;
        S::expand(tile.values[unit], tile.values_ahead[unit], tile.unit_tokens * dims, to);
        numbers.values[unit] = numbers.values_ahead[unit] = to;
    }
}

}  // namespace
