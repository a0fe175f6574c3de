// How packed codes lie in memory.
//
// A panel of 16 outputs is a sequence of lines of 64 bytes, 32 bits per output. With 4-bit codes, a line has 8 inputs:
// the even ones in an output's low 16 bits, the odd ones in its high 16 bits, each from low to high. With 8-bit codes:
// 4 inputs, likewise. So shifting a line right by a code moves the next pair of inputs to the start of every 16 bits.
//
// Codes of 5 and 6 bits are in two planes: some lines of their low 4 bits, as above, and then one of the bits above, for
// all inputs of those lines. A byte of it has the bits above of the same byte of each line: first of its low nibbles, then
// of its high ones. So one shift moves a line's bits above to those of its nibbles.
#pragma once

#include <cstdint>

#include "interface.h"
#include "linear/blocks.h"

namespace {

constexpr long kLineBytes = 64;

// The lines that hold the codes of some inputs.
template <int kBits>
struct CodeLines {
    static constexpr int kAbove = kBits > 4 && kBits < 8 ? kBits - 4 : 0;  // bits in the last line
    static constexpr int kLow = kBits - kAbove;
    static constexpr int kInputs = 32 / (kAbove ? kAbove : kBits);
    static constexpr int kCount = kInputs * kBits / 32;
    static constexpr int kInputsPerLine = 32 / kLow;

    // Of an input: the line of its low bits and their place in the word, and the place of those above in the last line's.
    static constexpr int line(int input) { return input / kInputsPerLine; }
    static constexpr int low(int input) { return input % 2 * 16 + input % kInputsPerLine / 2 * kLow; }
    static constexpr int above(int input) {
        const int pair = input % kInputsPerLine / 2;
        return input % 2 * 16 + pair / 2 * 8 + (2 * line(input) + pair % 2) * kAbove;
    }

    // The code of an input, of one output's words, which are 64 bytes apart.
    static int code(const uint8_t* words, int input) {
        const int low_bits = word(words, line(input)) >> low(input) & ((1 << kLow) - 1);
        return kAbove ? low_bits | (word(words, kCount - 1) >> above(input) & ((1 << kAbove) - 1)) << kLow : low_bits;
    }

private:
    static uint32_t word(const uint8_t* words, int line) {
        uint32_t found;
        std::memcpy(&found, words + line * kLineBytes, sizeof found);
        return found;
    }
};

// f(a weight's bits as a constant).
template <class F>
auto with_bits(int32_t bits, const F& f) {
    switch (bits) {
        case 4: return f(Constant<4>{});
        case 5: return f(Constant<5>{});
        case 6: return f(Constant<6>{});
        default: return f(Constant<8>{});
    }
}

inline long code_lines(const RinglineQuantizedWeight& weight) {  // of a panel
    return weight.in_features * weight.bits / 32;
}

// The last line, shifted: so that the bits above line kWord / 2's low nibbles, or (if kWord is odd) its high ones, are in their
// place, at kAboveMask of each byte; what is beside them is to be ignored.
template <int kBits, int kWord, class Line>
inline Line shifted_above(Line last) {
    typedef uint32_t Lanes __attribute__((vector_size(sizeof(Line))));
    constexpr int kRight = kWord * CodeLines<kBits>::kAbove - CodeLines<kBits>::kLow;
    const Lanes lanes = reinterpret_cast<Lanes>(last);
    if constexpr (kRight < 0) return reinterpret_cast<Line>(lanes << -kRight);
    else return reinterpret_cast<Line>(lanes >> kRight);
}

template <int kBits>
constexpr int kAboveMask = ((1 << CodeLines<kBits>::kAbove) - 1) << CodeLines<kBits>::kLow;

}  // namespace
