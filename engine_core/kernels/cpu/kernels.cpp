// The kernels for one instruction set. build.py compiles this file for each: with its flags, and with its vectors.
#include RINGLINE_VECTORS
// The vectors come first: all that follows is written in them.
#include "argmax.h"
#include "attention.h"
#include "barrier.h"
#include "elementwise.h"
#include "embedding.h"
#include "experts.h"
#include "gather.h"
#include "gguf_blocks.h"
#include "grouped_linear.h"
#include "int4_round.h"
#include "kernel_table.h"
#include "linear.h"
#include "norm.h"
#include "quantized_experts.h"
#include "quantized_linear.h"
#include "quantized_pack.h"
#include "quantized_rows.h"
#include "rope.h"
#include "route.h"
#include "select_rows.h"

#define RINGLINE_NAME(name, Arguments) name,
const Kernels RINGLINE_TABLE = {RINGLINE_KERNELS(RINGLINE_NAME)};
