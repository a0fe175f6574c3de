// What the library exports: its kernels, by instruction set.
#include <cstring>

#include "variants.h"

#define RINGLINE_EXPORT extern "C" __attribute__((visibility("default")))

// The kernels for an instruction set; null if they were not compiled in, or this processor cannot run them.
RINGLINE_EXPORT const Kernels* ringline_kernels(const char* instruction_set) {
#ifdef RINGLINE_KERNELS_AVX512_BF16
    if (!std::strcmp(instruction_set, "avx512_bf16")) {
        const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
        return runs ? &kernels_avx512_bf16 : nullptr;
    }
#endif
#ifdef RINGLINE_KERNELS_AVX2
    if (!std::strcmp(instruction_set, "avx2")) {
        const bool runs =
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        return runs ? &kernels_avx2 : nullptr;
    }
#endif
    return std::strcmp(instruction_set, "portable") ? nullptr : &kernels_portable;
}

// Which sources it was built from: see engine_core/kernels/build.py.
RINGLINE_EXPORT const char* ringline_source_digest() { return RINGLINE_SOURCE_DIGEST; }
