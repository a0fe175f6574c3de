// All kernels, for the vectors that were included before.
#pragma once

#include "activation.h"
#include "attention.h"
#include "embedding.h"
#include "argmax.h"
#include "experts.h"
#include "grouped_linear.h"
#include "linear.h"
#include "norm.h"
#include "rope.h"
#include "route.h"
#include "select_rows.h"
#include "sigmoid_gate.h"

#define KERNELS                                                                                                         \
    {                                                                                                                   \
        attention, linear, normalize, rotate, activate, read_rows, argmax, select_rows, sigmoid_gate, grouped_linear,   \
            route, experts                                                                                              \
    }
