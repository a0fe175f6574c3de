// Rows of numbers, rounded to bytes in blocks of inputs with one scale each, as products with codes want them.
#pragma once

#include "int8_rows.h"
#include "memory.h"

namespace {

constexpr long kMostBlockInputs = 128;  // of sums that float32 holds exactly: 128 · 127 · 255 < 2²⁴
constexpr int kRoundedTogether = 16;    // inputs; K is a multiple of them

// How the inputs of a weight are cut into blocks: its groups, or equal parts of them, the last of which may be shorter.
class InputBlocks {
public:
    InputBlocks(long inputs, long group_size)
        : inputs_(inputs), size_(size_of(inputs, group_size)), per_group_(group_size < inputs ? group_size / size_ : inputs) {}

    long count() const { return (inputs_ + size_ - 1) / size_; }
    long start(long block) const { return block * size_; }
    long size(long block) const { return inputs_ - start(block) < size_ ? inputs_ - start(block) : size_; }
    long size() const { return size_; }
    long per_group() const { return per_group_; }  // blocks
    long total() const { return inputs_; }

private:
    static long size_of(long inputs, long group_size) {
        if (group_size <= kMostBlockInputs) return group_size;
        long size = kMostBlockInputs;
        while (group_size < inputs && group_size % size) size -= kRoundedTogether;
        return size;
    }

    const long inputs_, size_, per_group_;
};

// A block of neighbouring rows. All is per block of inputs and row: the row comes last.
struct RowsOfBlock {
    const int32_t* words;   // [K / 4, rows], each of 4 inputs in the order of the codes
    const int32_t* starts;  // what sums begin with: those of the bytes, times the number that code 0 stands for
    const float* scales;
    const float* sums;  // of the bytes; scaled, where groups have minima
};

// Neighbouring rows are divided into blocks of nearly equal size.
struct CodeBlocks {
    long rows, count;

    explicit CodeBlocks(long rows) : rows(rows), count((rows + kCodeRows - 1) / kCodeRows) {}
    long start(long block) const { return rows * block / count; }
    int size(long block) const { return static_cast<int>(start(block + 1) - start(block)); }
};

// Rows, in blocks that begin wherever the caller says.
class CodeRows {
    typedef int8_t Bytes __attribute__((vector_size(kRoundedTogether)));

public:
    // For codes of `bits`; what they stand for is multiplied by `unit`, and code 0 stands for `first`.
    CodeRows(long rows, const InputBlocks& inputs, int bits, int32_t first, float unit, bool scaled_sums)
        : inputs_(inputs),
          bits_(bits),
          first_(first),
          unit_(unit),
          scaled_sums_(scaled_sums),
          buffer_(padded_bytes<int32_t>(rows * inputs.total() / 4) + 3 * padded_bytes<float>(rows * inputs.count())) {
        Parts parts(buffer_.at(0));
        words_ = parts.take<int32_t>(rows * inputs.total() / 4);
        starts_ = parts.take<int32_t>(rows * inputs.count());
        scales_ = parts.take<float>(rows * inputs.count());
        sums_ = parts.take<float>(rows * inputs.count());
    }

    bool failed() const { return buffer_.failed(); }

    // The block that begins with row `first`.
    RowsOfBlock block(long first) const {
        const long at = first * inputs_.count();
        return {words_ + first * inputs_.total() / 4, starts_ + at, scales_ + at, sums_ + at};
    }

    // Round the block of `rows` from row `first` on; input(row): K numbers.
    template <class F, class Input>
    void round(long first, long rows, const Input& input) const {
        for (long r = 0; r < rows; ++r) {
            const typename F::Element* const from = input(first + r);
            for (long b = 0; b < inputs_.count(); ++b)
                round<F>(from + inputs_.start(b), inputs_.size(b),
                         words_ + first * inputs_.total() / 4 + inputs_.start(b) / 4 * rows + r, rows,
                         first * inputs_.count() + b * rows + r);
        }
    }

private:
    // Rounds `count` numbers and puts words of 4 at every `step`-th place of `to`, and what goes with them at `place`.
    template <class F>
    void round(const typename F::Element* from, long count, int32_t* to, long step, long place) const {
        Sums most = magnitudes(F::widen(from));
        for (long i = kLanes; i < count; i += kLanes) most = larger(most, magnitudes(F::widen(from + i)));
        const Rounding rounding = rounding_for(largest(most));
        const Vec factor = splat(rounding.factor);
        Vec sums = splat(0.0f);
        for (long i = 0; i < count; i += kRoundedTogether) {
            alignas(kRoundedTogether) int32_t words[kRoundedTogether / 4];
            for (int lane = 0; lane < kRoundedTogether; lane += kLanes) {
                const Vec scaled = multiply(F::widen(from + i + lane), factor);
                sums = add(sums, round_to_integer(scaled));
                round_to_bytes(words + lane / 4, scaled);
            }
            in_order_of_codes(words);
            for (int w = 0; w < kRoundedTogether / 4; ++w) to[(i / 4 + w) * step] = words[w];
        }
        const float all = sum_of(sums), sum = all == all ? all : 0.0f;  // the scale is NaN, then
        scales_[place] = rounding.scale * unit_;
        sums_[place] = scaled_sums_ ? sum * rounding.scale : sum;
        starts_[place] = static_cast<int32_t>(sum) * first_;
    }

    void in_order_of_codes(int32_t* words) const {
        constexpr Bytes kFour = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
        constexpr Bytes kEight = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
        Bytes bytes;
        std::memcpy(&bytes, words, sizeof bytes);
        bytes = bits_ == 4 ? __builtin_shuffle(bytes, kFour) : __builtin_shuffle(bytes, kEight);
        std::memcpy(words, &bytes, sizeof bytes);
    }

    const InputBlocks& inputs_;
    const int bits_;
    const int32_t first_;
    const float unit_;
    const bool scaled_sums_;
    const Buffer buffer_;
    int32_t *words_, *starts_;
    float *scales_, *sums_;
};

}  // namespace
