// Linear layers with 8-bit weights for processors with AVX2, FMA and F16C.
#include "int8_avx2.h"
// The vectors come first: all that follows is written in them.
#include "int8_multiply.h"

int int8_linear_avx2(const RinglineInt8Weight& weight, const RinglineInt8Call& call) { return int8_linear(weight, call); }
