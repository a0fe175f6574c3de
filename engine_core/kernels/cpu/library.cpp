// What the library exports: its kernels, by instruction set.
#include <cstring>

#include "variants.h"

#define RINGLINE_EXPORT extern "C" __attribute__((visibility("default")))

using AttentionKernel = int (*)(const RinglineAttention&);

// The kernel for an instruction set; null if it was not compiled in, or this processor cannot run it.
RINGLINE_EXPORT AttentionKernel ringline_attention_kernel(const char* instruction_set) {
#ifdef RINGLINE_ATTENTION_AVX512_BF16
    if (!std::strcmp(instruction_set, "avx512_bf16")) {
        const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
        return runs ? attention_avx512_bf16 : nullptr;
    }
#endif
#ifdef RINGLINE_ATTENTION_AVX2
    if (!std::strcmp(instruction_set, "avx2")) {
        const bool runs =
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        return runs ? attention_avx2 : nullptr;
    }
#endif
    return std::strcmp(instruction_set, "portable") ? nullptr : attention_portable;
}

// Which sources it was built from: see engine_core/kernels/build.py.
RINGLINE_EXPORT const char* ringline_source_digest() { return RINGLINE_SOURCE_DIGEST; }
