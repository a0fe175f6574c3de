// Linear layers with 8-bit weights for every processor.
#include "int8_portable.h"
// The vectors come first: all that follows is written in them.
#include "int8_multiply.h"

int int8_linear_portable(const RinglineInt8Weight& weight, const RinglineInt8Call& call) { return int8_linear(weight, call); }
