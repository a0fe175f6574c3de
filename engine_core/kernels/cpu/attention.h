// The C interface of paged attention: one layer of one step. Mirrored by engine_core/kernels/library.py.
#pragma once

#include <cstdint>

extern "C" {

enum RinglineNumberType : int32_t { kRinglineFloat32 = 0, kRinglineFloat16 = 1, kRinglineBFloat16 = 2 };

// T rows, S sequences, Hq query heads, Hkv key/value heads, D head size. Within a row, heads are adjacent.
struct RinglineAttention {
    const void* query;   // [T, Hq, D]
    const void* key;     // [T, Hkv, D]
    const void* value;   // [T, Hkv, D]
    void* output;        // [T, Hq, D], dense
    void* cache;         // see layout.h
    int64_t query_stride, key_stride, value_stride;  // elements from one row to the next
    const int32_t* query_starts;                     // [S + 1]
    const int32_t* seq_lens;                         // [S]
    const int32_t* block_tables;                     // [S, …]
    int64_t block_table_stride;                      // entries from one sequence to the next
    int32_t num_seqs, num_heads, num_kv_heads, head_dim, block_size;
    int32_t number_type;
    int32_t num_threads;
    float scale;  // positive
};

}  // extern "C"
