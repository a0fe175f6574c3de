// A short convolution over the rows of each sequence. A channel's sum is one chain of additions, from the oldest row to
// the newest.
#pragma once

#include "rows/elementwise.h"
#include "states/sequences.h"

namespace {

constexpr long kConvolvedPerNanosecond = 3;
constexpr long kConvolvedChannels = 256;  // that a thread takes at a time, of a sequence
constexpr long kConvolvedRows = 16;       // whose inputs it holds at a time

// Some channels of a sequence: the width of a block is a multiple of 16.
template <class F>
class ConvolutionOfBlock {
    using Element = typename F::Element;

public:
    ConvolutionOfBlock(const RinglineShortConvolution& args, const StateSequence& sequence, long channel, Element* seen)
        : args_(args),
          sequence_(sequence),
          channel_(channel),
          width_(args.channels - channel < kConvolvedChannels ? args.channels - channel : kConvolvedChannels),
          kept_(args.taps - 1),
          seen_(seen) {}

    void run() const {
        load_source();
        long save = sequence_.first_save;
        for (long first = sequence_.first; first < sequence_.end; first += kConvolvedRows) {
            const long left = sequence_.end - first, rows = left < kConvolvedRows ? left : kConvolvedRows;
            for (long i = 0; i < rows; ++i) take_input(first + i, seen_ + (kept_ + i) * width_);
            for (long i = 0; i < rows; ++i) convolve(first + i, seen_ + i * width_);
            for (; save < sequence_.end_save && args_.save_rows[save] < first + rows; ++save)
                store_state(args_.save_slots[save], args_.save_rows[save] - first + 1);
            std::memmove(seen_, seen_ + rows * width_, kept_ * width_ * sizeof *seen_);
        }
    }

private:
    Element* state(long slot, long row) const {
        return static_cast<Element*>(args_.states) + (slot * kept_ + row) * args_.channels + channel_;
    }

    void load_source() const {
        for (long row = 0; row < kept_; ++row) {
            Element* const to = seen_ + row * width_;
            if (sequence_.source < 0)
                std::memset(to, 0, width_ * sizeof *to);
            else
                std::memcpy(to, state(sequence_.source, row), width_ * sizeof *to);
        }
    }

    void store_state(long slot, long first_seen) const {
        for (long row = 0; row < kept_; ++row)
            std::memcpy(state(slot, row), seen_ + (first_seen + row) * width_, width_ * sizeof *seen_);
    }

    void take_input(long row, Element* to) const {
        const Element* const x = static_cast<const Element*>(args_.x) + row * args_.x_stride + channel_;
        if (!args_.gate) {
            std::memcpy(to, x, width_ * sizeof *to);
            return;
        }
        const Element* const gate = static_cast<const Element*>(args_.gate) + row * args_.gate_stride + channel_;
        for (long i = 0; i < width_; i += kLanes) F::narrow(to + i, multiply(F::widen(x + i), F::widen(gate + i)));
    }

    // `inputs`: those of the row, after all that it sees.
    void convolve(long row, const Element* inputs) const {
        const Element* gate = static_cast<const Element*>(args_.output_gate);
        if (gate) gate += row * args_.output_gate_stride + channel_;
        Element* const output = static_cast<Element*>(args_.output) + row * args_.channels + channel_;
        for (long i = 0; i < width_; i += kLanes) {
            Vec y = args_.bias ? load(args_.bias + channel_ + i) : splat(0.0f);
            for (long tap = 0; tap <= kept_; ++tap) {
                const Vec weight = load(args_.weight + tap * args_.channels + channel_ + i);
                y = multiply_add(F::widen(inputs + tap * width_ + i), weight, y);
            }
            if (args_.silu) y = Silu::of(y);
            F::narrow(output + i, gate ? multiply(y, F::widen(gate + i)) : y);
        }
    }

    const RinglineShortConvolution& args_;
    const StateSequence sequence_;
    const long channel_, width_, kept_;
    Element* const seen_;  // [W − 1 + kConvolvedRows, width]: inputs of the last rows before, then of the current ones
};

template <class F>
int convolve_rows(const RinglineShortConvolution& args) {
    using Element = typename F::Element;
    const long blocks = (args.channels + kConvolvedChannels - 1) / kConvolvedChannels;
    const long bytes = padded_bytes<Element>((args.taps - 1 + kConvolvedRows) * kConvolvedChannels);
    const int threads = threads_worth(rows_of(args) * args.channels / kConvolvedPerNanosecond, args.num_threads);
    return for_each_with_memory(threads, args.num_seqs * blocks, bytes, [&](long item, char* memory) {
        const StateSequence sequence = sequence_of(args, item / blocks);
        auto* const seen = reinterpret_cast<Element*>(memory);
        ConvolutionOfBlock<F>(args, sequence, item % blocks * kConvolvedChannels, seen).run();
    });
}

inline int short_convolution(const RinglineShortConvolution& args) {
    return with_number_type(args.number_type, [&](auto number) { return convolve_rows<decltype(number)>(args); });
}

}  // namespace
