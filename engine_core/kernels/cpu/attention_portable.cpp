// Attention for any processor.
#include "simd_portable.h"
// The vectors come first: all that follows is written in them.
#include "step.h"
#include "variants.h"

int attention_portable(const RinglineAttention& args) { return attention(args); }
