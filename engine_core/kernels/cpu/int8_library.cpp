// Exports the linear layers with 8-bit weights, by instruction set.
#include <cstring>

#include "int8_linear.h"

// The kernels for an instruction set; null if it was not compiled in, or this processor cannot run it.
extern "C" __attribute__((visibility("default"))) const Int8Kernels* ringline_int8_kernels(const char* instruction_set) {
#ifdef RINGLINE_INT8_LINEAR_AVX512_VNNI
    if (!std::strcmp(instruction_set, "avx512_vnni")) {
        const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
        return runs ? &int8_kernels_avx512_vnni : nullptr;
    }
#endif
#ifdef RINGLINE_INT8_LINEAR_AVX2
    if (!std::strcmp(instruction_set, "avx2")) {
        const bool runs =
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        return runs ? &int8_kernels_avx2 : nullptr;
    }
#endif
    return std::strcmp(instruction_set, "portable") ? nullptr : &int8_kernels_portable;
}
