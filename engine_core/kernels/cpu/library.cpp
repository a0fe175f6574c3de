// The library's exports: kernels by instruction set, and replay.
#include <cstring>

#include "kernel_table.h"
#include "threads/replay.h"

#define RINGLINE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

#ifdef __x86_64__
[[maybe_unused]] bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
[[maybe_unused]] bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

bool equal(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

}  // namespace

// The kernels for an instruction set; null if they were not compiled in, or this processor cannot run them.
RINGLINE_EXPORT const Kernels* ringline_kernels(const char* instruction_set) {
#ifdef RINGLINE_KERNELS_AVX512_BF16
    if (equal(instruction_set, "avx512_bf16"))
        return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") ? &kernels_avx512_bf16 : nullptr;
#endif
#ifdef RINGLINE_KERNELS_AVX2
    if (equal(instruction_set, "avx2")) return has_avx2() ? &kernels_avx2 : nullptr;
#endif
    return equal(instruction_set, "portable") ? &kernels_portable : nullptr;
}

// The same for 8-bit weights.
RINGLINE_EXPORT const Int8Kernels* ringline_int8_kernels(const char* instruction_set) {
#ifdef RINGLINE_INT8_KERNELS_AVX512_VNNI
    if (equal(instruction_set, "avx512_vnni"))
        return has_avx512() && __builtin_cpu_supports("avx512vnni") ? &int8_kernels_avx512_vnni : nullptr;
#endif
#ifdef RINGLINE_INT8_KERNELS_AVX2
    if (equal(instruction_set, "avx2")) return has_avx2() ? &int8_kernels_avx2 : nullptr;
#endif
    return equal(instruction_set, "portable") ? &int8_kernels_portable : nullptr;
}

// Run calls in order; returns a RinglineResult.
RINGLINE_EXPORT int ringline_replay(const RinglineOperation* operations, int64_t count, const RinglineStep* step) {
    return replay(operations, count, *step);
}

// Identifies the sources: see engine_core/kernels/build.py.
RINGLINE_EXPORT const char* ringline_source_digest() { return RINGLINE_SOURCE_DIGEST; }
