// The kernels for any processor.
#include "simd_portable.h"
// The vectors come first: all that follows is written in them.
#include "kernels.h"
#include "variants.h"

const Kernels kernels_portable = KERNELS;
