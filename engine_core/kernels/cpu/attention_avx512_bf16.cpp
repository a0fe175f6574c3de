// Attention for processors with AVX-512 and its products of bfloat16.
#include "simd_avx512_bf16.h"
// The vectors come first: all that follows is written in them.
#include "step.h"
#include "variants.h"

int attention_avx512_bf16(const RinglineAttention& args) { return attention(args); }
