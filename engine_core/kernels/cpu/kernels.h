// All kernels, for the vectors that were included before.
#pragma once

#include "attention.h"
#include "embedding.h"
#include "silu_and_mul.h"
#include "argmax.h"
#include "linear.h"
#include "norm.h"
#include "rope.h"
#include "select_rows.h"

#define KERNELS {attention, linear, normalize, rotate, silu_and_multiply, read_rows, argmax, select_rows}
