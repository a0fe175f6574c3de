// Rounds weights to 8 bits and packs them while a layer is built.
#pragma once

#include "quantized/int8_multiply.h"

namespace {

template <class F>
class Int8Packing {
public:
    explicit Int8Packing(const RinglineInt8Packing& args) : args_(args), words_((args.in_features + 3) / 4) {}

    void run() {
        const long panels = (args_.out_features + kInt8Panel - 1) / kInt8Panel;
        parallel_for(args_.num_threads, panels, 8, [&](long panel) { pack(panel); });
    }

private:
    // The panel's memory holds zeros, which padding columns keep.
    void pack(long panel) {
        int8_t* const to = args_.weight + panel * kInt8Panel * words_ * 4;
        const auto* const from = static_cast<const typename F::Element*>(args_.input);
        for (long column = 0; column < kInt8Panel && panel * kInt8Panel + column < args_.out_features; ++column) {
            const long channel = panel * kInt8Panel + column;
            int32_t* const words = reinterpret_cast<int32_t*>(to) + column;
            args_.scales[channel] =
                round_row<F>(from + channel * args_.in_features, args_.in_features, words, kInt8Panel, 0);
        }
        for (int v = 0; v < kVectors; ++v) {
            Sums sums = splat_integer(0);
            for (long word = 0; word < words_; ++word)
                sums = add_products(sums, 0x01010101, load_quads(to + (word * kInt8Panel + v * kLanes) * 4));
            store_sums(args_.column_sums + panel * kInt8Panel + v * kLanes, sums);
        }
    }

    const RinglineInt8Packing& args_;
    const long words_;
};

inline int int8_pack(const RinglineInt8Packing& args) {
    return with_number_type(args.input_type, [&](auto input) {
        Int8Packing<decltype(input)>(args).run();
        return 0;
    });
}

}  // namespace
