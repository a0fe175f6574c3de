// Attention for processors with AVX2, FMA and F16C.
#include "simd_avx2.h"
// The vectors come first: all that follows is written in them.
#include "step.h"
#include "variants.h"

int attention_avx2(const RinglineAttention& args) { return attention(args); }
