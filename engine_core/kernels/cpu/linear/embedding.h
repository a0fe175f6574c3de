// Reads rows of a packed weight back: token embeddings, if the table is also the head's weight.
#pragma once

#include "linear/linear.h"

namespace {

constexpr long kReadPerNanosecond = 1;

template <class F>
int read_packed_rows(const RinglineRows& args) {
    using Element = typename F::Element;
    const long width = args.in_features;
    const int threads = threads_worth(args.rows * width / kReadPerNanosecond, args.num_threads);
    parallel_for(threads, args.rows, 1, [&](long row) {
        const long index = args.indices[row];
        const Element* const from =
            static_cast<const Element*>(args.weight) + index / kPanel * kPanel * width + index % kPanel * F::kPack;
        Element* const to = static_cast<Element*>(args.output) + row * width;
        for (long i = 0; i < width; i += F::kPack) std::memcpy(to + i, from + i * kPanel, F::kPack * sizeof(Element));
    });
    return 0;
}

inline int read_rows(const RinglineRows& args) {
    return with_number_type(args.number_type, [&](auto number) { return read_packed_rows<decltype(number)>(args); });
}

}  // namespace
