// Linear layers with 8-bit weights for processors with AVX-512 with VNNI.
#include "int8_avx512_vnni.h"
// The vectors come first: all that follows is written in them.
#include "int8_multiply.h"

int int8_linear_avx512_vnni(const RinglineInt8Weight& weight, const RinglineInt8Call& call) { return int8_linear(weight, call); }
