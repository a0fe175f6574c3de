// Runs captured calls of kernels, on the rows and sequences of another step.
#pragma once

#include "variants.h"

namespace {

int replay(const RinglineOperation& operation, const RinglineStep& step) {
    const auto& kernels = *static_cast<const Kernels*>(operation.kernels);
    switch (operation.kind) {
        case kRinglineAttend: {
            auto call = *static_cast<const RinglineAttention*>(operation.arguments);
            call.query_starts = step.query_starts;
            call.seq_lens = step.seq_lens;
            call.block_tables = step.block_tables;
            call.block_table_stride = step.block_table_stride;
            call.num_seqs = step.num_seqs;
            call.num_threads = step.num_threads;
            return kernels.attention(call);
        }
        case kRinglineMultiply: {
            auto call = *static_cast<const RinglineLinear*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.linear(call);
        }
        case kRinglineNormalize: {
            auto call = *static_cast<const RinglineNorm*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.normalize(call);
        }
        case kRinglineRotate: {
            auto call = *static_cast<const RinglineRotation*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.rotate(call);
        }
        case kRinglineGate: {
            auto call = *static_cast<const RinglineGate*>(operation.arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            return kernels.silu_and_multiply(call);
        }
        default: {  // kRinglineMultiplyInt8
            auto call = *static_cast<const RinglineInt8Call*>(operation.more_arguments);
            call.rows = step.rows;
            call.num_threads = step.num_threads;
            const auto& weight = *static_cast<const RinglineInt8Weight*>(operation.arguments);
            return static_cast<const Int8Kernels*>(operation.kernels)->linear(weight, call);
        }
    }
}

}  // namespace
