// The C interface of the kernels: what each computes, and the lists of them. engine_core/kernels/arguments.py reads the
// structures and the lists from this file. Arrays are dense where no stride is given.
#pragma once

#include <cstdint>

extern "C" {

enum RinglineNumberType : int32_t { kRinglineFloat32 = 0, kRinglineFloat16 = 1, kRinglineBFloat16 = 2 };

// What a KV cache keeps: numbers of the layer's type, or codes of 8 bits with scales (attention/codes.h).
enum RinglineCacheType : int32_t { kRinglineCacheAsNumbers = 0, kRinglineInt8Cache = 1, kRinglineFloat8Cache = 2 };

// Paged attention: one layer of one step. T rows, S sequences, Hq query heads, Hkv key/value heads, D head size. Within a row, heads are adjacent.
//
// Over latents, which all heads share, D is R + P: a query has R numbers and P numbers more, which are rotated; a key is a
// latent of R numbers and a rotated part of P; the value is the latent.
struct RinglineAttention {
    const void* query;   // [T, Hq, D]; [T, Hq, R] over latents
    const void* key;     // [T, Hkv, D]; [T, R] over latents; null: nothing is written, the cache has this step's keys
    const void* value;   // [T, Hkv, D]; the rotated part [T, P] over latents
    void* output;        // [T, Hq, D]; [T, Hq, R] over latents. A row's heads are adjacent
    const void* query_rope;                              // [T, Hq, P]; null but over latents
    int64_t query_rope_stride, query_rope_head_stride;   // elements from one row to the next, and from one head to the next
    void* cache;         // see attention/layout.h
    int64_t query_stride, key_stride, value_stride, output_stride;  // elements from one row to the next
    const int32_t* query_starts;                     // [S + 1]
    const int32_t* seq_lens;                         // [S]
    const int32_t* block_tables;                     // [S, …]
    int64_t block_table_stride;                      // entries from one sequence to the next
    int64_t block_stride;                            // elements of the cache from one block to the next
    const float* sinks;  // [Hq]: logits that take part in the softmax and have no values; or null
    int32_t group;                                   // which of a step's block tables these are
    int32_t num_seqs, num_heads, num_kv_heads, head_dim, block_size;
    int32_t latent_dim;  // R over latents, else 0
    int32_t sliding_window;  // keys that a row sees, its own and those before it; 0: all. Blocks before them are not read
    int32_t number_type;
    int32_t cache_type;
    int32_t num_threads;
    float scale;          // positive
    float logit_softcap;  // scores s become c · tanh(s / c) after scaling; 0: they stay
};

// A linear layer of M rows, K inputs and N outputs: y = (x · Wᵀ + b) · scale. K is a multiple of 16; W and b are padded with
// zeros to whole tiles.
struct RinglineLinear {
    const void* x;         // [M, K]
    const void* weight;    // packed: see linear/linear.h; of the quantized kernels a RinglineQuantizedWeight
    const float* bias;     // [N], or null
    const void* residual;  // [M, N] of x's type, added to y; or null
    void* output;          // [M, N]; floats where `wide` is set
    float* greatest;       // [M]: of argmax alone, the greatest results, allowed or not; or null
    const uint32_t* allowed;  // [M, ⌈N / 32⌉]: of argmax alone, bits of the outputs that may be found; or null
    int64_t rows, in_features, out_features;
    int64_t residual_stride, output_stride;  // elements from one row to the next
    int32_t number_type;
    int32_t wide;
    int32_t num_threads;
    float scale;
};

// Linear layers side by side: G groups of K inputs and N outputs each, without biases. Each group's weight is packed and
// padded to whole tiles on its own, and follows the one before.
struct RinglineGroupedLinear {
    const void* x;       // [M, G, K]
    const void* weight;  // [G], each as in RinglineLinear
    void* output;        // [M, G, N], dense
    int64_t rows, groups, in_features, out_features;
    int64_t x_stride, x_group_stride;  // elements from one row to the next, and from one group to the next
    int32_t number_type;
    int32_t num_threads;
};

enum RinglineScoring : int32_t { kRinglineSoftmax = 0, kRinglineSigmoid = 1 };

// Which k of E experts compute each of M rows. The experts with the highest scores do, the lower number of equals; with
// groups, only those of the groups with the highest scores. They are listed in descending order.
struct RinglineRouting {
    const float* logits;         // [M, E]
    const float* bias;           // [E]: added to scores for the choice, not for the weights; or null
    const float* expert_scales;  // [E]: factors of the weights; or null
    int32_t* ids;                // [M, k]
    float* weights;              // [M, k]
    int64_t rows;
    int32_t num_experts, top_k;
    int32_t num_groups, topk_groups;  // groups of neighbouring experts, and how many of them are chosen
    int32_t group_best;               // a group's score is the sum of this many of its highest
    int32_t scoring;
    int32_t renormalize;  // whether a row's weights are divided by their sum
    int32_t num_threads;
    float scale;  // of the weights
};

// The phases of experts: a call is for any of them that follow each other.
enum RinglineExpertPhase : int32_t { kRinglineGateUp = 1, kRinglineDown = 2, kRinglineSum = 4 };

// Gated feed-forward blocks, of which each row goes through the k that are listed for it, times their weights. H, I and
// the parts of them are multiples of 16. The weights of gate and up are packed as in RinglineLinear, a tile of both for 32
// numbers of I: two panels of the gate, two of up.
//
// Weights of 8 bits are a RinglineInt8Weight each, with the experts' weights one after the other and a bias of its own:
// one of 2 · I′ outputs, of which a panel has 16 of the gate, then 16 of up, and one of H′ outputs.
//
// A rank of several has a part: of all experts the outputs I′ of I and H′ of H, or E whole experts of more (I′ = I, H′ = H).
// Between its phases, ranks exchange `activated`, whose places have the same order on all ranks that have all experts, or
// `outputs`. A part has the bits that the whole has.
struct RinglineExperts {
    const void* x;              // [M, H]
    const int32_t* ids;         // [M, k]; pairs of a row and an expert that is not here are left out
    const float* weights;       // [M, k]
    const void* gate_up;        // [E, I′ / 32] tiles of H inputs; or a RinglineInt8Weight, or a RinglineQuantizedWeight
    const void* down;           // [E, H′ / 64] tiles of I inputs; or one of the others
    const float* gate_up_bias;  // [E, I′ / 32, 64], in the order of the tiles; or null
    const float* down_bias;     // [E, H′ padded to tiles], or null
    const void* residual;       // [M, H′], or null
    void* output;               // [M, H′]
    void* gathered;             // [M, k, H] factors: room for the rows of each expert; unused with 8-bit weights
    void* activated;            // [M, k] places of I′ factors, for the phase down of I; numbers with 8-bit weights
    void* outputs;              // [M, k, H′] numbers, times the weights; may be `gathered`
    void* rounded;              // [M, k, max(H, I)] bytes; of 8-bit weights alone, like the next
    float* row_scales;          // [M, k]
    int64_t rows, hidden, inner;
    int64_t hidden_part, inner_part;  // H′ and I′
    int64_t residual_stride;          // elements from one row to the next
    int32_t first_expert, num_experts, top_k;
    int32_t phases;      // RinglineExpertPhase, added up
    int32_t activation;  // RinglineActivationKind
    int32_t number_type;
    int32_t num_threads;
    float limit, alpha;  // of kRinglineClampedSwiglu
};

// A weight [N, K] of codes. What a code c of input k stands for is scale · (codebook[c] − zero), or scale · codebook[c] +
// minimum, where the inputs k / group_size of an output have the scale, the zero and the minimum; G is ⌈K / group_size⌉.
//
// Outputs are in panels of 16, padded with zeros to whole tiles of 64; several weights may follow each other. K and the
// group size are multiples of 16.
struct RinglineQuantizedWeight {
    const uint8_t* codes;      // [N / 16] panels of lines of 64 bytes: see quantized/pack.h
    const void* scales;        // [N / 16, G, 16] of scale_type; int8_t where there are outer ones
    const void* outer_scales;  // [N / 16, ⌈K / outer_size⌉, 16] of scale_type: factors of the others; or null
    const uint8_t* zeros;      // [N / 16, G, 16], or null
    const void* minima;        // [N / 16, G, 16], like scales; or null
    const void* outer_minima;  // like outer_scales
    const float* codebook;     // [1 << bits]
    const int32_t* input_order;  // [K], of experts [E, K]: which input of x each one of the weight is; null: the same
    int64_t in_features, out_features;
    int64_t group_size, outer_size;  // the outer one a multiple of the other
    int32_t bits;                    // of a code: 4 or 8
    int32_t scale_type;              // RinglineNumberType
};

// Writes `rows` rows from row `first` on, of a weight that has `tile_panels` panels of every tile from panel `panel` on; all
// dense.
struct RinglineQuantizedPacking {
    const RinglineQuantizedWeight* weight;
    const uint8_t* codes;      // [rows, K]
    const void* scales;        // [rows, G]
    const void* outer_scales;  // [rows, ⌈K / outer_size⌉]; this and what follows where the weight has them
    const uint8_t* zeros;      // [rows, G]
    const void* minima;        // [rows, G]
    const void* outer_minima;
    int64_t first, rows;
    int64_t panel, tile_panels;
    int32_t num_threads;
};

// M rows of a weight, as they were before it was packed; of the quantized kernels in the numbers that they stand for.
struct RinglineRows {
    const void* weight;      // as in RinglineLinear
    const int64_t* indices;  // [M]
    void* output;            // [M, K]
    int64_t rows, in_features;
    int32_t number_type;
    int32_t num_threads;
};

// M rows of a matrix.
struct RinglineSelection {
    const void* x;
    void* output;
    const int64_t* indices;  // [M]; null: the first M
    int64_t rows, row_bytes;
    int64_t x_stride;  // bytes from one row to the next
    int32_t num_threads;
};

// Normalization of the G groups of each of M rows: by their root mean square, or, with a bias, by their mean and deviation.
// The width is a multiple of 16; after the first mean_width numbers of a group there are zeros, in x, in the weight and in
// the bias.
struct RinglineNorm {
    const void* x;         // [M, G, width]; a row's groups are adjacent
    const float* weight;   // [width]
    const float* bias;     // [width], or null
    const void* residual;  // [M, G, width], dense: what is added to the result, in its type; or null
    const void* over;      // [M, over_width]: rows whose root mean square counts instead, of one group; or null
    void* output;          // [M, G, width]; may be x
    int64_t rows, groups, width, mean_width;
    int64_t x_stride, output_stride;  // elements from one row to the next
    int64_t over_width, over_stride;
    int32_t number_type;
    int32_t num_threads;
    float epsilon;
    float scale;  // of the sum
};

enum RinglineActivationKind : int32_t {
    kRinglineSilu = 0,
    kRinglineGelu = 1,
    kRinglineGeluTanh = 2,
    kRinglineRelu = 3,
    kRinglineClampedSwiglu = 4,  // (min(max(up, −limit), limit) + 1) · g · σ(α · g) with g = min(gate, limit); in experts alone
};

// f(x) · up of M rows, or f(x). The width is a multiple of 16.
struct RinglineActivation {
    const void* x;   // [M, width]
    const void* up;  // [M, width], or null
    void* output;    // [M, width]
    int64_t rows, width;
    int64_t x_stride, up_stride, output_stride;  // elements from one row to the next
    int32_t kind;
    int32_t number_type;
    int32_t num_threads;
};

// residual + σ(logit) · x of M rows. The width is a multiple of 16.
struct RinglineSigmoidGate {
    const void* x;         // [M, width]
    const float* logits;   // [M]
    const void* residual;  // [M, width]
    void* output;          // [M, width]; may be the residual
    int64_t rows, width;
    int32_t number_type;
    int32_t num_threads;
};

// Normalization of queries and keys (and of values), then rotation of queries and keys, in place. D, the head size, is a
// multiple of 16; after the first mean_width numbers of a head there are zeros.
struct RinglineRotation {
    void* heads;                             // [T, …]: queries, then keys, then values
    const float *cos, *sin;                  // [T, rotary_dim / 2]
    const float* query_scales;               // [T]: factors of the queries; or null
    const float *query_weight, *key_weight;  // [D]; null where heads are not normalized
    const float* value_weight;               // [D]; null where values are left alone
    int64_t rows, stride;                    // elements from one row to the next
    int64_t head_stride;                     // from one head to the next
    int32_t num_heads, num_kv_heads, head_dim, mean_width;
    int32_t rotary_dim;   // the first numbers of a head; 0: nothing is rotated
    int32_t interleaved;  // whether numbers 2i and 2i + 1 are a pair, instead of i and i + rotary_dim / 2
    int32_t number_type;
    int32_t num_threads;
    float epsilon;
};

// A weight [N, K] that is rounded to 8 bits. It and what belongs to outputs are padded with zeros to whole panels of 32
// outputs, and K to whole words of 4.
struct RinglineInt8Weight {
    const int8_t* weight;        // [N / 32, K / 4, 32, 4], −127 … 127
    const float* scales;         // [N]
    const int32_t* column_sums;  // [N], of the weights
    const float* bias;           // [N], or null
    int64_t in_features, out_features;
};

// Makes one out of [N, K] numbers; all that is written to must hold zeros.
struct RinglineInt8Packing {
    const void* input;
    int8_t* weight;
    float* scales;
    int32_t* column_sums;
    int64_t in_features, out_features;
    int32_t input_type;
    int32_t num_threads;
};

// A linear layer of M rows with such a weight.
struct RinglineInt8Linear {
    const RinglineInt8Weight* weight;
    const void* input;     // [M, K]
    int64_t input_stride;  // elements from one row to the next
    const void* residual;  // [M, N] of the input's type, added to the output; or null
    void* output;          // [M, N]
    int64_t rows;
    int64_t residual_stride, output_stride;  // elements from one row to the next
    int32_t input_type;
    int32_t output_type;  // the same, or float32
    int32_t num_threads;
    float scale;  // of the product and its bias
};

// Rounds M rows of a weight to 4 bits, in groups that share an outer scale and an outer minimum by 256 inputs: see
// quantized/int4_round.h. G is ⌈K / group_size⌉, O is ⌈K / 256⌉; outer ones are bfloat16.
struct RinglineInt4Rounding {
    const void* input;       // [M, K]
    uint8_t* codes;          // [M, K]
    int8_t* scales;          // [M, G]
    uint16_t* outer_scales;  // [M, O]
    int8_t* minima;          // [M, G]
    uint16_t* outer_minima;  // [M, O]
    int64_t rows, in_features;
    int32_t group_size;      // 32, 64 or 128
    int32_t input_type;
    int32_t num_threads;
};

// GGUF's types of blocks; as in quantization/gguf_blocks.py.
enum RinglineBlockType : int32_t {
    kRinglineQ4_0 = 0, kRinglineQ4_1, kRinglineQ5_0, kRinglineQ5_1, kRinglineQ8_0, kRinglineQ2_K, kRinglineQ3_K,
    kRinglineQ4_K, kRinglineQ5_K, kRinglineQ6_K, kRinglineIQ4_NL, kRinglineIQ4_XS, kRinglineMXFP4
};

// Takes M rows of B blocks apart: see quantized/gguf_blocks.h. Of a block of 32 numbers the scale has two bytes; one of 256 has
// outer ones, and scales of a byte for each of its groups.
struct RinglineGgufBlocks {
    const uint8_t* input;    // [M, B, bytes of a block]
    uint8_t* codes;          // [M, B, numbers of a block]
    uint8_t* scales;         // [M, B, …]
    uint8_t* outer_scales;   // [M, B, 2]; this and what follows where the type has them, or null
    uint8_t* minima;         // like scales
    uint8_t* outer_minima;   // like outer_scales
    int64_t rows, blocks;
    int32_t block_type;
    int32_t num_threads;
};

enum RinglineResult : int32_t {
    kRinglineDone = 0,
    kRinglineNoMemory = 1,
    kRinglineRankFailed = 2,     // another rank is gone: see threads/barrier.h
    kRinglineRanksDisagree = 3,  // the ranks do not make the same calls
};

// The beginning of the memory that the ranks of a host share; what each rank calls follows. See threads/barrier.h.
struct RinglineRanks {
    int32_t arrived;   // ranks that wait for the others
    int32_t round;     // barriers that all have passed
    int32_t sleepers;  // ranks that wait asleep
    int32_t aborted;   // whether every call fails from now on
};

// Waits until all ranks have made the call.
struct RinglineBarrier {
    RinglineRanks* ranks;
    int64_t* held;  // [4]: bits of this rank's, which become those that any rank has set; or null
    int32_t rank, size;
};

// M rows of G rows each, of which every rank has some columns, or some rows. Each rank copies its own to memory that all
// share, and waits for the others. Bytes, not numbers.
struct RinglineGather {
    RinglineRanks* ranks;
    const void* x;       // [M, G, …], this rank's
    const int32_t* ids;  // [M, G]: only rows with an id in [first_id, end_id) are copied; null: all
    void* output;        // [M, G, …], shared: where this rank's columns begin
    int64_t* held;       // as in RinglineBarrier
    int64_t rows, groups;
    int64_t row_bytes;                // of one of the M · G rows of x
    int64_t x_stride, x_group_stride;  // bytes from one of M to the next, and from one of G to the next
    int64_t output_stride;             // bytes from one of M · G to the next
    int64_t place, layout;             // where in the shared memory, and a digest of the columns; as all ranks have them
    int32_t first_id, end_id;
    int32_t rank, size;
    int32_t num_threads;
};

// Every kernel: its name and what it takes; it returns a RinglineResult. The tables of kernels
// (kernel_table.h), their replay (threads/replay.h) and Python follow these lists. `argmax` puts out [M] int64: where each row of
// a linear layer's result is greatest.
#define RINGLINE_KERNELS(X)                   \
    X(attention, RinglineAttention)           \
    X(linear, RinglineLinear)                 \
    X(argmax, RinglineLinear)                 \
    X(grouped_linear, RinglineGroupedLinear)  \
    X(read_rows, RinglineRows)                \
    X(int4_round, RinglineInt4Rounding)       \
    X(quantized_linear, RinglineLinear)       \
    X(quantized_argmax, RinglineLinear)       \
    X(quantized_rows, RinglineRows)           \
    X(quantized_pack, RinglineQuantizedPacking) \
    X(gguf_blocks, RinglineGgufBlocks)        \
    X(quantized_experts, RinglineExperts)     \
    X(normalize, RinglineNorm)                \
    X(rotate, RinglineRotation)               \
    X(activate, RinglineActivation)           \
    X(sigmoid_gate, RinglineSigmoidGate)      \
    X(select_rows, RinglineSelection)         \
    X(route, RinglineRouting)                 \
    X(experts, RinglineExperts)               \
    X(barrier, RinglineBarrier)               \
    X(gather, RinglineGather)

// Those of 8-bit weights are apart, since what multiplies bytes fast is not what multiplies bfloat16 fast: a processor may
// have either alone.
#define RINGLINE_INT8_KERNELS(X)                \
    X(int8_linear, RinglineInt8Linear)          \
    X(int8_pack, RinglineInt8Packing)           \
    X(int8_experts, RinglineExperts)            \
    X(quantized_int8_linear, RinglineLinear)    \
    X(quantized_int8_argmax, RinglineLinear)    \
    X(quantized_int8_experts, RinglineExperts)

// A captured call of a kernel.
struct RinglineOperation {
    int32_t kind;  // the kernel's place in both lists, one after the other
    void* kernel;
    const void* arguments;
};

// What captured calls get anew: everything that differs from step to step. As in RinglineAttention.
struct RinglineStep {
    const int32_t* query_starts;
    const int32_t* seq_lens;
    const int32_t* const* block_tables;  // of each group
    int64_t block_table_stride;          // of all of them
    int64_t rows;
    const int64_t* selected;  // [num_selected] of the rows, the only ones after a selection; null: the first
    int64_t num_selected;
    int32_t num_seqs;
    int32_t num_threads;
};

}  // extern "C"
