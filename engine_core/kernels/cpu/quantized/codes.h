// Looks up the factors of packed codes: see quantized/code_lines.h.
#pragma once

#include "linear/linear.h"
#include "quantized/code_lines.h"

namespace {

template <int kBits>
struct TableOf {
    using Type = LargeTable<1 << kBits>;
};
template <>
struct TableOf<4> {
    using Type = Table16;
};

// A vector of words of each of some lines.
template <int kCount>
struct LineWords {
    Words of[kCount];

    static LineWords load(const uint8_t* at) {
        LineWords words;
        for (int line = 0; line < kCount; ++line) words.of[line] = load_words(at + line * kLineBytes);
        return words;
    }
};

// Looks up codes of kBits bits as the columns that factors of D are multiplied by. A vector of words of each line has
// kInputs inputs, D::kPack · kSteps, of each of kLanes outputs.
template <class D, int kBits>
class Codes {
    typedef uint32_t Lanes __attribute__((vector_size(sizeof(Words))));

public:
    using Decoded = D;
    using Lines = CodeLines<kBits>;
    static constexpr int kInputs = Lines::kInputs, kSteps = kInputs / D::kPack;

    explicit Codes(const float* codebook) : table_(codebook) {}

    // For how many rows lookup in registers pays off: each block of rows does it again.
    long few_rows() const { return kBits == 4 && table_.is_computed() ? 12 : 4; }

    using Loaded = LineWords<Lines::kCount>;

    // The column of inputs from `kStep` · D::kPack on.
    template <int kStep>
    typename D::Column column(const Loaded& loaded) const {
        static_assert(D::kPack == 1);
        const Words low = shifted_right<Lines::low(kStep)>(loaded.of[Lines::line(kStep)]);
        if constexpr (Lines::kAbove == 0) {
            return table_[low];
        } else {
            const Words above = shifted_right<Lines::above(kStep)>(loaded.of[Lines::kCount - 1]);
            constexpr uint32_t kLow = (1 << Lines::kLow) - 1, kAbove = (1 << Lines::kAbove) - 1;
            const Lanes codes = (reinterpret_cast<Lanes>(low) & kLow) | (reinterpret_cast<Lanes>(above) & kAbove) << Lines::kLow;
            return table_[reinterpret_cast<Words>(codes)];
        }
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
    using Lines = CodeLines<4>;
    static constexpr int kInputs = 8, kSteps = 4;
    // Always: it uses another port than products.
    static constexpr long few_rows() { return kMostUnitRows; }

    explicit Codes(const float* codebook) {
        uint16_t twice[32];
        store_bfloat16(twice, load(codebook));
        store_bfloat16(twice + 16, load(codebook));
        table_ = load_words(twice);
    }

    // Loading again from the second byte saves a shift. (May read a byte past the end of the memory.)
    struct Loaded {
        Words low, high;
        static Loaded load(const uint8_t* at) { return {load_words(at), load_words(at + 1)}; }
    };

    template <int kStep>
    Words column(Loaded line) const {
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
    using Lines = CodeLines<8>;
    static constexpr int kInputs = 4, kSteps = 2;
    static constexpr long few_rows() { return 6; }

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

    using Loaded = LineWords<1>;

    template <int kStep>
    Words column(Loaded line) const {
        constexpr uint64_t kOdd = 0xaaaaaaaaaaaaaaaa;
        const Words high = look_up(high_, line.of[0]), low = look_up(low_, line.of[0]);
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

// 32 or 64 numbers in bfloat16: looks up high and low bytes separately, of a line's low nibbles or its high ones at once.
template <int kBits>
class SplitCodes {
public:
    using Decoded = BFloat16;
    using Lines = CodeLines<kBits>;
    static constexpr int kInputs = Lines::kInputs, kSteps = kInputs / 2;
    static constexpr long few_rows() { return 4; }

    explicit SplitCodes(const float* codebook) {
        uint16_t numbers[64];
        for (int i = 0; i < 64; i += kLanes) store_bfloat16(numbers + i, load(codebook + i % (1 << kBits)));
        alignas(64) uint8_t high[64], low[64];
        for (int i = 0; i < 64; ++i) {
            high[i] = static_cast<uint8_t>(numbers[i] >> 8);
            low[i] = static_cast<uint8_t>(numbers[i]);
        }
        high_ = load_words(high);
        low_ = load_words(low);
    }

    using Loaded = LineWords<Lines::kCount>;

    template <int kStep>
    Words column(const Loaded& loaded) const {
        constexpr int kLine = kStep / 4, kNibble = kStep % 2;
        constexpr uint64_t kOdd = 0xaaaaaaaaaaaaaaaa;
        // Lookup takes the low 6 bits of each byte; 5-bit codes have any sixth, as their table repeats.
        const Words nibbles = _mm512_srli_epi16(loaded.of[kLine], 4 * kNibble);
        const Words above = shifted_above<kBits, 2 * kLine + kNibble>(loaded.of[Lines::kCount - 1]);
        const Words codes = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), nibbles, above, kSelect);
        const Words high = _mm512_permutexvar_epi8(codes, high_), low = _mm512_permutexvar_epi8(codes, low_);
        if constexpr (kStep % 4 < 2) return _mm512_mask_mov_epi8(low, kOdd, _mm512_slli_epi16(high, 8));
        return _mm512_mask_mov_epi8(_mm512_srli_epi16(low, 8), kOdd, high);
    }

private:
    static constexpr int kSelect = 0xca;  // where the first has ones the second, else the third

    Words high_, low_;
};
template <>
class Codes<BFloat16, 5> : public SplitCodes<5> {
    using SplitCodes::SplitCodes;
};
template <>
class Codes<BFloat16, 6> : public SplitCodes<6> {
    using SplitCodes::SplitCodes;
};

#endif

}  // namespace
