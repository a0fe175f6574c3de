// What all products with adapters' weights share: sums of a panel, and where to read ahead.
#pragma once

#include "linear/linear.h"

namespace {

constexpr long kLoraAhead = 2 << 10;  // bytes read ahead

// As many rows as make the sums of a panel hide what a multiplication waits for.
template <class F>
constexpr int lora_rows() {
    constexpr int kSums = (F::kPack == 1 ? kPlainBlockRows : kBlockRows) * kBlockColumns, kRows = kSums / (kPanel / kLanes);
    return kRows < 8 ? kRows : 8;
}

// Where to read ahead: so far behind what is read now, then where the next unit begins.
class LoraAhead {
public:
    LoraAhead(const void* at, long bytes, const void* following)
        : ahead_(static_cast<const char*>(at) + kLoraAhead),
          following_(static_cast<const char*>(following)),
          left_(bytes - kLoraAhead) {}

    // So many bytes are about to be read.
    inline __attribute__((always_inline)) void pass(long bytes) {
        if (left_ <= 0 && following_) {
            ahead_ = following_;
            following_ = nullptr;
        }
        for (long line = 0; line < bytes; line += kCacheLine) prefetch(ahead_ + line);
        ahead_ += bytes;
        left_ -= bytes;
    }

private:
    const char *ahead_, *following_;
    long left_;
};

// A panel of 16 sums for each of some rows.
template <class F, int Rows>
struct PanelSums {
    using Element = typename F::Element;
    static constexpr int kVectors = kPanel / kLanes;

    Block<F, Rows, kVectors> block;

    // Add `steps` products of kPack factors each.
    inline __attribute__((always_inline)) void add(const typename F::Factor* left, long stride, const Element* panel, long steps) {
#pragma GCC unroll 2
        for (long step = 0; step < steps; ++step) {
            typename F::Column columns[kVectors];
#pragma GCC unroll 8
            for (int c = 0; c < kVectors; ++c) columns[c] = F::column(panel + (step * kPanel + c * kLanes) * F::kPack);
            block.add_step(left + step * F::kPack, stride, columns);
        }
    }
};

}  // namespace
