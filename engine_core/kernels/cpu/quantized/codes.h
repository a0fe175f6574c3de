// Looks up the factors of packed codes, by line: see quantized/pack.h.
#pragma once

#include "linear/linear.h"

namespace {

// f(Constant<0>{}), …, f(Constant<kCount − 1>{}).
template <int kCount, int kFirst = 0, class F>
inline __attribute__((always_inline)) void for_constants(const F& f) {
    if constexpr (kFirst < kCount) {
        f(Constant<kFirst>{});
        for_constants<kCount, kFirst + 1>(f);
    }
}

template <int kBits>
struct TableOf {
    using Type = Table256;
};
template <>
struct TableOf<4> {
    using Type = Table16;
};

// Looks up codes of kBits bits as the columns that factors of D are multiplied by; a vector of words has
// D::kPack · kSteps inputs of each of kLanes outputs.
template <class D, int kBits>
class Codes {
public:
    using Decoded = D;
    static constexpr int kInputs = 32 / kBits, kSteps = kInputs / D::kPack;
    static constexpr long kFewRows = 4;  // for which lookup in registers pays off

    explicit Codes(const float* codebook) : table_(codebook) {}

    using Line = Words;
    static Line load_line(const uint8_t* at) { return load_words(at); }

    // The column of inputs from `kStep` · D::kPack on.
    template <int kStep>
    typename D::Column column(Words words) const {
        static_assert(D::kPack == 1);
        return table_[shifted_right<kStep % 2 * 16 + kStep / 2 * kBits>(words)];
    }

private:
    const typename TableOf<kBits>::Type table_;
};

#ifdef __AVX512BF16__

// 16 numbers in bfloat16: looks up 4 bits of each half of a word, ignoring the others.
template <>
class Codes<BFloat16, 4> {
public:
    using Decoded = BFloat16;
    static constexpr int kInputs = 8, kSteps = 4;
    static constexpr long kFewRows = kMostUnitRows;  // always: it uses another port than products

    explicit Codes(const float* codebook) {
        uint16_t twice[32];
        store_bfloat16(twice, load(codebook));
        store_bfloat16(twice + 16, load(codebook));
        table_ = load_words(twice);
    }

    // Loading again from the second byte saves a shift. (May read a byte past the end of the memory.)
    struct Line {
        Words low, high;
    };
    static Line load_line(const uint8_t* at) { return {load_words(at), load_words(at + 1)}; }

    template <int kStep>
    Words column(Line line) const {
        return _mm512_permutexvar_epi16(_mm512_srli_epi16(kStep < 2 ? line.low : line.high, kStep % 2 * 4), table_);
    }

private:
    Words table_;
};

// 256 numbers in bfloat16: looks up high and low bytes separately, a whole line at once.
template <>
class Codes<BFloat16, 8> {
public:
    using Decoded = BFloat16;
    static constexpr int kInputs = 4, kSteps = 2;
    static constexpr long kFewRows = 6;

    explicit Codes(const float* codebook) {
        uint16_t numbers[256];
        for (int i = 0; i < 256; i += kLanes) store_bfloat16(numbers + i, load(codebook + i));
        alignas(64) uint8_t high[256], low[256];
        for (int i = 0; i < 256; ++i) {
            high[i] = static_cast<uint8_t>(numbers[i] >> 8);
            low[i] = static_cast<uint8_t>(numbers[i]);
        }
        for (int i = 0; i < 4; ++i) {
            high_[i] = load_words(high + 64 * i);
            low_[i] = load_words(low + 64 * i);
        }
    }

    using Line = Words;
    static Line load_line(const uint8_t* at) { return load_words(at); }

    template <int kStep>
    Words column(Words words) const {
        constexpr uint64_t kOdd = 0xaaaaaaaaaaaaaaaa;
        const Words high = look_up(high_, words), low = look_up(low_, words);
        if constexpr (kStep == 0) return _mm512_mask_mov_epi8(low, kOdd, _mm512_slli_epi16(high, 8));
        return _mm512_mask_mov_epi8(_mm512_srli_epi16(low, 8), kOdd, high);
    }

private:
    static Words look_up(const Words (&bytes)[4], Words codes) {
        return _mm512_mask_mov_epi8(
            _mm512_permutex2var_epi8(bytes[0], codes, bytes[1]), _mm512_movepi8_mask(codes),
            _mm512_permutex2var_epi8(bytes[2], codes, bytes[3]));
    }

    Words high_[4], low_[4];
};

#endif

}  // namespace
