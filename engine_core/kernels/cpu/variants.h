// The same kernels, compiled for different instruction sets. Each returns 0, or 1 when there was no memory.
#pragma once

#include "attention.h"

int attention_avx512_bf16(const RinglineAttention& args);
int attention_avx2(const RinglineAttention& args);
int attention_portable(const RinglineAttention& args);
