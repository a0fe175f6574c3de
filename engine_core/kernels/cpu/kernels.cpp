// The kernels for one instruction set. build.py compiles this file for each, with its flags and vectors.
#include RINGLINE_VECTORS
// The vectors come first: all following code uses them.
#include "linear/argmax.h"
#include "attention/attention.h"
#include "threads/barrier.h"
#include "rows/elementwise.h"
#include "linear/embedding.h"
#include "experts/experts.h"
#include "threads/gather.h"
#include "quantized/gguf_blocks.h"
#include "linear/grouped_linear.h"
#include "quantized/int4_round.h"
#include "kernel_table.h"
#include "linear/linear.h"
#include "lora/lora.h"
#include "rows/norm.h"
#include "experts/quantized_experts.h"
#include "quantized/linear.h"
#include "quantized/pack.h"
#include "quantized/rows.h"
#include "rows/rope.h"
#include "experts/route.h"
#include "rows/select_rows.h"
#include "rows/streams.h"
#include "states/gated_norm.h"
#include "states/recurrence.h"
#include "states/short_convolution.h"

#define RINGLINE_NAME(name, Arguments) name,
const Kernels RINGLINE_TABLE = {RINGLINE_KERNELS(RINGLINE_NAME)};
