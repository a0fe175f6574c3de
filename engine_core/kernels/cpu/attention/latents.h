// Rearranges a cache's latents, stored as keys, into values: see attention/layout.h.
#pragma once

#include "attention/layout.h"

namespace {

// Four rows of four numbers, `from_step` apart, as four columns, `to_step` apart.
template <class Number>
inline void transpose_4x4(const Number* from, long from_step, Number* to, long to_step) {
    typedef Number Four __attribute__((vector_size(4 * sizeof(Number))));
    typedef decltype(Four{} < Four{}) Places;
    const Places low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
    Four x[4], y[4];
    for (int i = 0; i < 4; ++i) std::memcpy(x + i, from + i * from_step, sizeof x[i]);
    y[0] = __builtin_shuffle(x[0], x[2], low), y[1] = __builtin_shuffle(x[1], x[3], low);
    y[2] = __builtin_shuffle(x[0], x[2], high), y[3] = __builtin_shuffle(x[1], x[3], high);
    x[0] = __builtin_shuffle(y[0], y[1], low), x[1] = __builtin_shuffle(y[0], y[1], high);
    x[2] = __builtin_shuffle(y[2], y[3], low), x[3] = __builtin_shuffle(y[2], y[3], high);
    for (int i = 0; i < 4; ++i) std::memcpy(to + i * to_step, x + i, sizeof x[i]);
}

// The first `dims` dimensions [dims][tokens] of numbers of any size, as [tokens][dims]; dims is a multiple of 4.
template <class Number>
inline void transpose(const Number* from, int tokens, long dims, Number* to) {
    const int in_fours = tokens / 4 * 4;
    for (long dim = 0; dim < dims; dim += 4)
        for (int token = 0; token < in_fours; token += 4)
            transpose_4x4(from + dim * tokens + token, tokens, to + token * dims + dim, dims);
    for (int token = in_fours; token < tokens; ++token)
        for (long dim = 0; dim < dims; ++dim) to[token * dims + dim] = from[dim * tokens + token];
}

// [dims / 2][tokens][2] as [tokens / 2][dims][2]. Two dimensions of two tokens are one word of four numbers a b c d, which
// becomes a c b d.
inline void transpose_pairs(const uint64_t* from, int token_pairs, long dim_pairs, uint64_t* to) {
    for (long dim = 0; dim < dim_pairs; ++dim)
        for (int token = 0; token < token_pairs; ++token) {
            const uint64_t word = from[dim * token_pairs + token];
            const uint64_t inner = (word >> 16 & 0xffff0000u) | (word & 0xffff0000u) << 16;
            to[token * dim_pairs + dim] = (word & 0xffff00000000ffffu) | inner;
        }
}

#ifdef __AVX512F__

// The same for eight pairs of tokens: blocks of eight words by eight.
inline void transpose_pairs_of_16(const uint64_t* from, long dim_pairs, uint64_t* to) {
    for (long dim = 0; dim < dim_pairs; dim += 8) {
        __m512i x[8], y[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const __m512i words = _mm512_loadu_si512(from + (dim + i) * 8);
            x[i] = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(words, 0xd8), 0xd8);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i += 2) {
            y[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
            y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 2; ++i) {
            x[i] = _mm512_shuffle_i64x2(y[i], y[i + 2], 0x88);
            x[i + 2] = _mm512_shuffle_i64x2(y[i], y[i + 2], 0xdd);
            x[i + 4] = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0x88);
            x[i + 6] = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0xdd);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 4; ++i) {
            _mm512_storeu_si512(to + i * dim_pairs + dim, _mm512_shuffle_i64x2(x[i], x[i + 4], 0x88));
            _mm512_storeu_si512(to + (i + 4) * dim_pairs + dim, _mm512_shuffle_i64x2(x[i], x[i + 4], 0xdd));
        }
    }
}

#endif

// Rearrange a tile's visible units into `memory`, and point the tile's values there.
template <class F>
void rearrange_latents(KeyTile<F>& tile, long dims, typename F::Element* memory) {
    for (int unit = tile.first_unit; unit < tile.units; ++unit) {
        typename F::Element* const to = memory + unit * tile.unit_tokens * dims;
        if constexpr (F::kPack == 2) {
            const auto* const from = reinterpret_cast<const uint64_t*>(tile.keys[unit]);
#ifdef __AVX512F__
            if (tile.unit_tokens == kUnit && dims % 16 == 0)
                transpose_pairs_of_16(from, dims / 2, reinterpret_cast<uint64_t*>(to));
            else
#endif
                transpose_pairs(from, tile.unit_tokens / 2, dims / 2, reinterpret_cast<uint64_t*>(to));
        } else {
            transpose(tile.keys[unit], tile.unit_tokens, dims, to);
        }
        tile.values[unit] = to;
    }
}

}  // namespace
