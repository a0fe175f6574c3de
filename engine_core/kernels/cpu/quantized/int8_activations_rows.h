// Rounds rows to bytes, with a scale per block of inputs, in the layout of products with codes.
#pragma once

#include "quantized/int8_rows.h"
#include "threads/memory.h"

namespace {

constexpr long kMostBlockInputs = 128;  // so that 32 bits hold scaled sums: 128 · 127 · 255 · 128 < 2³¹
constexpr int kRoundedTogether = 16;    // inputs; divides K

// Cuts a weight's inputs into blocks, whose numbers are rounded with one scale (some of its groups, or equal parts of
// one), and blocks into parts, whose codes have one scale. The last ones may be shorter.
class InputBlocks {
public:
    InputBlocks(long inputs, long group_size, long outer_size)
        : inputs_(inputs),
          size_(size_of(inputs, group_size, outer_size)),
          part_size_(group_size < size_ ? group_size : size_),
          per_group_(group_size < inputs ? group_size / part_size_ : inputs) {}

    long total() const { return inputs_; }
    long size() const { return size_; }
    long count() const { return (inputs_ + size_ - 1) / size_; }
    long part_size() const { return part_size_; }
    long parts() const { return (inputs_ + part_size_ - 1) / part_size_; }
    long parts_per_group() const { return per_group_; }

private:
    static long size_of(long inputs, long group_size, long outer_size) {
        if (group_size <= kMostBlockInputs) {
            long size = kMostBlockInputs / group_size * group_size;
            while (outer_size % size) size -= group_size;
            return size;
        }
        long size = kMostBlockInputs;
        while (group_size < inputs && group_size % size) size -= kRoundedTogether;
        return size;
    }

    const long inputs_, size_, part_size_, per_group_;
};

// A block of neighbouring rows. Rows are the last dimension.
struct RowsOfBlock {
    const int32_t* words;   // [K / 4, rows], each of 4 inputs in the codes' order
    const int32_t* starts;  // [parts, rows]: initial sums: `sums` times code 0's number
    const int32_t* sums;    // [parts, rows]: of the bytes; if paired, two parts' in one word
    const float* scales;    // [blocks of inputs, rows]
};

// Divides neighbouring rows into blocks of nearly equal size.
struct CodeBlocks {
    long rows, count;

    explicit CodeBlocks(long rows) : rows(rows), count((rows + kCodeRows - 1) / kCodeRows) {}
    long start(long block) const { return rows * block / count; }
    int size(long block) const { return static_cast<int>(start(block + 1) - start(block)); }
};

// Rounded rows, in blocks; the caller says where they begin.
class CodeRows {
    typedef int8_t Bytes __attribute__((vector_size(kRoundedTogether)));

public:
    // For codes of `bits` whose numbers are multiples of `unit`; code 0 stands for `first` units. If `paired`, the sums of
    // two neighbouring parts of a block share a word, in the first one's place.
    CodeRows(long rows, const InputBlocks& inputs, int bits, int32_t first, float unit, bool paired)
        : inputs_(inputs),
          bits_(bits),
          first_(first),
          unit_(unit),
          paired_(paired),
          buffer_(padded_bytes<int32_t>(rows * inputs.total() / 4) + 2 * padded_bytes<int32_t>(rows * inputs.parts()) +
                  padded_bytes<float>(rows * inputs.count())) {
        Parts parts(buffer_.at(0));
        words_ = parts.take<int32_t>(rows * inputs.total() / 4);
        starts_ = parts.take<int32_t>(rows * inputs.parts());
        sums_ = parts.take<int32_t>(rows * inputs.parts());
        scales_ = parts.take<float>(rows * inputs.count());
    }

    bool failed() const { return buffer_.failed(); }

    // The block that begins at row `first`.
    RowsOfBlock block(long first) const {
        const long part = first * inputs_.parts();
        return {words_ + first * inputs_.total() / 4, starts_ + part, sums_ + part, scales_ + first * inputs_.count()};
    }

    // Round the block of `rows` from row `first` on; input(row): K numbers.
    template <class F, class Input>
    void round(long first, long rows, const Input& input) const {
        for (long r = 0; r < rows; ++r) {
            const typename F::Element* const from = input(first + r);
            int32_t* words = words_ + first * inputs_.total() / 4 + r;
            long part = first * inputs_.parts() + r;
            for (long b = 0; b < inputs_.count(); ++b) {
                const long start = b * inputs_.size(), end = least(start + inputs_.size(), inputs_.total());
                const Rounding rounding = rounding_of<F>(from + start, end - start);
                scales_[first * inputs_.count() + b * rows + r] = rounding.scale * unit_;
                for (long i = start; i < end; i += inputs_.part_size(), part += rows) {
                    const long count = least(inputs_.part_size(), end - i);
                    const int32_t sum = round_part<F>(from + i, count, rounding.factor, words, rows);
                    const int32_t of_units = static_cast<int32_t>(sum / unit_);
                    if (!paired_ || (i - start) / inputs_.part_size() % 2 == 0)
                        sums_[part] = paired_ ? of_units & 0xffff : of_units;
                    else
                        sums_[part - rows] |= of_units * (1 << 16);
                    starts_[part] = sum * first_;
                    words += count / 4 * rows;
                }
            }
        }
    }

private:
    static long least(long a, long b) { return a < b ? a : b; }

    template <class F>
    static Rounding rounding_of(const typename F::Element* from, long count) {
        Sums most = magnitudes(F::widen(from));
        for (long i = kLanes; i < count; i += kLanes) most = larger(most, magnitudes(F::widen(from + i)));
        return rounding_for(largest(most));
    }

    // Round `count` numbers to words of 4 at every `step`-th place of `to`; returns their sum.
    template <class F>
    int32_t round_part(const typename F::Element* from, long count, float factor, int32_t* to, long step) const {
        Vec sums = splat(0.0f);
        for (long i = 0; i < count; i += kRoundedTogether) {
            alignas(kRoundedTogether) int32_t words[kRoundedTogether / 4];
            for (int lane = 0; lane < kRoundedTogether; lane += kLanes) {
                const Vec scaled = multiply(F::widen(from + i + lane), splat(factor));
                sums = add(sums, round_to_integer(scaled));
                round_to_bytes(words + lane / 4, scaled);
            }
            in_order_of_codes(words);
            for (int w = 0; w < kRoundedTogether / 4; ++w) to[(i / 4 + w) * step] = words[w];
        }
        const float sum = sum_of(sums);
        return sum == sum ? static_cast<int32_t>(sum) : 0;  // the scale is NaN then
    }

    void in_order_of_codes(int32_t* words) const {
        constexpr Bytes kFour = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
        constexpr Bytes kEight = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
        Bytes bytes;
        std::memcpy(&bytes, words, sizeof bytes);
        bytes = bits_ == 8 ? __builtin_shuffle(bytes, kEight) : __builtin_shuffle(bytes, kFour);
        std::memcpy(words, &bytes, sizeof bytes);
    }

    const InputBlocks& inputs_;
    const int bits_;
    const int32_t first_;
    const float unit_;
    const bool paired_;
    const Buffer buffer_;
    int32_t *words_, *starts_, *sums_;
    float* scales_;
};

}  // namespace
