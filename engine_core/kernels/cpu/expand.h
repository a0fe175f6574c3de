// Tiles of an 8-bit cache as numbers, and their scales.
#pragma once

#include "softmax.h"

namespace {

// The scales of a tile's places: those of keys, and kScoreStride further those of values.
template <class S>
void load_scales(const KeyTile<S>& tile, long values_offset, float* scales) {
    for (int unit = tile.first_unit; unit < tile.units; ++unit)
        for (int plane = 0; plane < 2; ++plane) {
            const uint16_t* const from = tile.scales[unit] + plane * values_offset;
            float* const to = scales + plane * kScoreStride + unit * tile.unit_tokens;
            for (int i = 0; i < tile.unit_tokens; ++i) {
                const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
                std::memcpy(to + i, &bits, sizeof bits);
            }
        }
}

// Multiply a row's scores of a tile's codes by the codes' scales.
template <class S>
void scale_scores(float* scores, const KeyTile<S>& tile, const float* scales) {
    for (int place = first_place(tile); place < padded_places(tile.places()); place += kLanes)
        store(scores + place, multiply(load(scores + place), load(scales + place)));
}

// The units of a tile that are looked at, with `memory` [units, U · dims] for their keys.
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

// The same for values, once keys are expanded.
template <class S>
void expand_values(const KeyTile<S>& tile, long dims, typename S::Number::Element* memory, KeyTile<typename S::Number>& numbers) {
    for (int unit = tile.first_unit; unit < tile.units; ++unit) {
        auto* const to = memory + unit * tile.unit_tokens * dims;
        S::expand(tile.values[unit], tile.values_ahead[unit], tile.unit_tokens * dims, to);
        numbers.values[unit] = numbers.values_ahead[unit] = to;
    }
}

}  // namespace
