// The kernels' C interface: their arguments, and the lists of kernels. engine_core/kernels/arguments.py parses the
// structures and lists of this file. Arrays without a stride are dense.
#pragma once

#include <cstdint>

extern "C" {

enum RinglineNumberType : int32_t { kRinglineFloat32 = 0, kRinglineFloat16 = 1, kRinglineBFloat16 = 2 };

// What a KV cache stores: numbers of the layer's type, or 8-bit codes with scales (attention/codes.h).
enum RinglineCacheType : int32_t { kRinglineCacheAsNumbers = 0, kRinglineInt8Cache = 1, kRinglineFloat8Cache = 2 };

// Paged attention: one layer, one step. T rows, S sequences, Hq query heads, Hkv KV heads, D head size. A row's heads are adjacent.
//
// Over latents, which all heads share, D = R + P: queries have R numbers and P rotated ones; a key is a latent of R numbers
// and a rotated part of P; the value is the latent.
struct RinglineAttention {
    const void* query;   // [T, Hq, D]; [T, Hq, R] over latents
    const void* key;     // [T, Hkv, D]; [T, R] over latents; null: write nothing; the cache has this step's keys
    const void* value;   // [T, Hkv, D]; the rotated part [T, P] over latents
    void* output;        // [T, Hq, D]; [T, Hq, R] over latents. A row's heads are adjacent
    const void* query_rope;                              // [T, Hq, P] over latents, else null
    int64_t query_rope_stride, query_rope_head_stride;   // elements from one row, and one head, to the next
    void* cache;         // see attention/layout.h
    int64_t query_stride, key_stride, value_stride, output_stride;  // elements from one row to the next
    const int32_t* query_starts;                     // [S + 1]
    const int32_t* seq_lens;                         // [S]
    const int32_t* block_tables;                     // [S, …]
    int64_t block_table_stride;                      // entries from one sequence to the next
    int64_t block_stride;                            // elements of the cache from one block to the next
    const float* sinks;  // [Hq]: logits that join the softmax without values; or null
    const int32_t* visible_until;                    // [T]: if `both_ways`, keys before it are visible, too; or null
    int32_t group;                                   // index into the step's block tables
    int32_t num_seqs, num_heads, num_kv_heads, head_dim, block_size;
    int32_t latent_dim;  // R over latents, else 0
    int32_t sliding_window;  // keys that a row sees, up to its own; 0: all. Earlier blocks are not read
    int32_t chunked;         // whether a row sees those from the last multiple of sliding_window instead
    int32_t both_ways;       // whether rows of pictures see these to their ends. A step has all of a picture, or nothing
    int32_t number_type;
    int32_t cache_type;
    int32_t num_threads;
    float scale;          // positive
    float logit_softcap;  // scaled scores s become c · tanh(s / c); 0: unchanged
};

// A linear layer of M rows, K inputs and N outputs: y = (x · Wᵀ + b) · scale. K is a multiple of 16; zeros pad W and b to
// whole tiles.
struct RinglineLinear {
    const void* x;         // [M, K]
    const void* weight;    // packed: see linear/linear.h; a RinglineQuantizedWeight for quantized kernels
    const float* bias;     // [N], or null
    const void* residual;  // [M, N] of x's type, added to y; or null
    void* output;          // [M, N]; float32 if `wide`
    float* greatest;       // [M], argmax only: the greatest results, allowed or not; or null
    const uint32_t* allowed;  // [M, ⌈N / 32⌉], argmax only: a bit per allowed output; or null
    int64_t rows, in_features, out_features;
    int64_t residual_stride, output_stride;  // elements from one row to the next
    int32_t number_type;
    int32_t wide;
    int32_t num_threads;
    float scale;
};

// Linear layers side by side: G groups, each of K inputs and N outputs, without biases. Groups' weights follow each other,
// each packed and padded to whole tiles.
struct RinglineGroupedLinear {
    const void* x;       // [M, G, K]
    const void* weight;  // [G], each as in RinglineLinear
    void* output;        // [M, G, N], dense
    int64_t rows, groups, in_features, out_features;
    int64_t x_stride, x_group_stride;  // elements from one row, and one group, to the next
    int32_t number_type;
    int32_t num_threads;
};

// Neighbouring outputs of a layer, to which the same ranks of an adapter add.
struct RinglineLoraSpan {
    const void* b;           // [⌈columns / 16⌉, ranks / P, 16, P]: see linear/linear.h
    int64_t b_group_stride;  // elements from one of G groups to the next; 0: the same for all
    int64_t column, columns;  // the first, and their number
    int64_t rank, ranks;      // multiples of P
    int64_t panels_end;       // panels of this span and of those before it
};

// An adapter's weights for one layer. Spans do not overlap.
//
// The experts of a layer are two: one of what is before the activation, whose outputs are I′ of gate, if experts are gated,
// and then I′ of up; and one of down. Each has the experts that the adapter touches as its groups.
//
// A small layer in float32 has no ranks, but a weight of its own, with what the adapter adds.
struct RinglineLoraLayer {
    const void* a;                  // [R / 16, K / P, 16, P]
    const float* scales;            // [R]
    const RinglineLoraSpan* spans;  // at least one
    const int32_t* experts;         // [E]: the group of each, or −1; null: not of experts
    int64_t a_group_stride;         // like b_group_stride
    int64_t scales_group_stride;    // likewise; of experts only
    const float* merged;            // [N, K], of small layers; null: the layer is as without adapter
    int64_t ranks;                  // R, a multiple of 16; 0: nothing is added to the layer
    int64_t panels;                 // of all spans
    int64_t products;               // per row and group
};

// The adapters of a step, and its rows that have them, by adapter: rows[starts[i]] … rows[starts[i + 1] − 1], ascending.
struct RinglineLoraStep {
    const RinglineLoraLayer* const* adapters;    // each one's layers
    const int32_t *starts, *rows;                // of all rows
    const int32_t *wanted_starts, *wanted_rows;  // of computations of fewer than num_rows rows
    int64_t num_rows;
    int32_t num_adapters;
};

// y += scale · (scales · (x · Aᵀ)) · Bᵀ in rows that have adapters, of a layer of G groups of K inputs and N outputs each.
// The scales and the ranks of spans are those of all groups.
struct RinglineLora {
    const RinglineLoraStep* step;
    const void* x;  // [M, G, K]
    void* y;        // [M, G, N]; float32 if `wide`
    int64_t rows, groups, in_features;
    int64_t x_stride, x_group_stride, y_stride, y_group_stride;  // elements from one row, and one group, to the next
    int32_t layer;  // its number
    int32_t number_type;
    int32_t wide;
    int32_t num_threads;
    float scale;
};

enum RinglineScoring : int32_t { kRinglineSoftmax = 0, kRinglineSigmoid = 1 };

// Chooses k of E experts for each of M rows: those with the highest scores, lower ids first among equals; with groups,
// only experts of the groups with the highest scores. Lists them by descending score. Sigmoids with neither groups nor
// biases are compared by their logits, as large ones round to 1.
struct RinglineRouting {
    const float* logits;         // [M, E]
    const float* bias;           // [E]: added to scores for the choice only, not the weights; or null
    const float* expert_scales;  // [E]: factors of the weights; or null
    int32_t* ids;                // [M, k]
    float* weights;              // [M, k]
    int64_t rows;
    int32_t num_experts, top_k;
    int32_t num_groups, topk_groups;  // groups of neighbouring experts, and the number chosen
    int32_t group_best;               // a group's score sums this many of its highest
    int32_t scoring;
    int32_t renormalize;  // whether to divide a row's weights by their sum
    int32_t num_threads;
    float sum_offset;  // added to that sum
    float scale;       // of the weights
};

// The phases of experts: a call runs one, or several consecutive ones.
enum RinglineExpertPhase : int32_t { kRinglineGateUp = 1, kRinglineDown = 2, kRinglineSum = 4 };

// Gated feed-forward blocks (experts): each row goes through its k listed experts, times their weights. H, I and
// their parts are multiples of 16. Gate and up are packed as in RinglineLinear; a tile holds 32 numbers of I of both:
// two panels of gate, then two of up.
//
// 8-bit weights are two RinglineInt8Weight, each with all experts' weights one after another and its own bias:
// one of 2 · I′ outputs, with panels of 16 gate and then 16 up outputs, and one of H′ outputs.
//
// A rank owns a part: of every expert the outputs I′ of I and H′ of H, or E whole experts (I′ = I, H′ = H).
// Between phases, ranks exchange `activated`, whose places have the same order on all ranks that have all experts, or
// `outputs`. A part has the same bits as in the whole.
struct RinglineExperts {
    const void* x;              // [M, H]
    const int32_t* ids;         // [M, k]; experts of other ranks are skipped
    const float* weights;       // [M, k]
    const void* gate_up;        // [E, I′ / 32] tiles of H inputs; or a RinglineInt8Weight or RinglineQuantizedWeight
    const void* down;           // [E, H′ / 64] tiles of I inputs; or one of those
    const float* gate_up_bias;  // [E, I′ / 32, 64], in the order of the tiles; or null
    const float* down_bias;     // [E, H′ padded to tiles], or null
    const void* residual;       // [M, H′], or null
    void* output;               // [M, H′]
    void* gathered;             // [M, k, H] factors: scratch for each expert's rows; unused with 8-bit weights
    void* activated;            // [M, k] places of I′ factors (of I in phase down); numbers with 8-bit weights
    void* outputs;              // [M, k, H′] numbers, weighted; may be `gathered`
    void* rounded;              // [M, k, max(H, I)] bytes; 8-bit weights only, like the next
    float* row_scales;          // [M, k]
    const RinglineLoraStep* adapters;  // or null
    int64_t rows, hidden, inner;
    int64_t hidden_part, inner_part;  // H′ and I′
    int64_t residual_stride;          // elements from one row to the next
    int32_t first_expert, num_experts, top_k;
    int32_t phases;      // sum of RinglineExpertPhase
    int32_t activation;  // RinglineActivationKind
    int32_t weighs_inputs;  // whether weights multiply experts' inputs, instead of their outputs
    int32_t gated;          // else there is only up, in tiles and panels of its own, and no bias
    int32_t lora_layer;     // the number of what is before the activation; down's follows it
    int32_t number_type;
    int32_t num_threads;
    float limit, alpha;  // of kRinglineClampedSwiglu
};

// A weight [N, K] of codes. A code c of input k stands for scale · (codebook[c] − zero), or scale · codebook[c] +
// minimum; scale, zero and minimum belong to group k / group_size of the output. G = ⌈K / group_size⌉.
//
// Outputs are in panels of 16, padded with zeros to whole tiles of 64; several weights may follow each other. K and the
// group size are multiples of 16; with 5 bits, K and the inputs that share a scale in int8 kernels are multiples of 32.
struct RinglineQuantizedWeight {
    const uint8_t* codes;      // [N / 16] panels of lines of 64 bytes: see quantized/code_lines.h
    const void* scales;        // [N / 16, G, 16] of scale_type; int8_t with outer scales
    const void* outer_scales;  // [N / 16, ⌈K / outer_size⌉, 16] of scale_type: factors of scales; or null
    const uint8_t* zeros;      // [N / 16, G, 16], or null
    const void* minima;        // [N / 16, G, 16], like scales; or null
    const void* outer_minima;  // like outer_scales
    const float* codebook;     // [1 << bits]
    const int32_t* input_order;  // [K], for experts [E, K]: x's index of each weight input; null: the same
    int64_t in_features, out_features;
    int64_t group_size, outer_size;  // outer_size is a multiple of group_size
    int32_t bits;                    // of a code: 4, 5, 6 or 8
    int32_t scale_type;              // RinglineNumberType
};

// Packs rows `first` … `first` + `rows` − 1 of a weight that has `tile_panels` panels of every tile, from panel `panel` on;
// all dense.
struct RinglineQuantizedPacking {
    const RinglineQuantizedWeight* weight;
    const uint8_t* codes;      // [rows, K]
    const void* scales;        // [rows, G]
    const void* outer_scales;  // [rows, ⌈K / outer_size⌉]; this and the rest if the weight has them
    const uint8_t* zeros;      // [rows, G]
    const void* minima;        // [rows, G]
    const void* outer_minima;
    int64_t first, rows;
    int64_t panel, tile_panels;
    int32_t num_threads;
};

// M rows of a packed weight, unpacked; dequantized by the quantized kernels.
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

// Normalizes the G groups of each of M rows: by root mean square, or, with a bias, by mean and deviation.
// The width is a multiple of 16; zeros follow the first mean_width numbers of a group, in x, the weight and
// the bias.
struct RinglineNorm {
    const void* x;         // [M, G, width]; a row's groups are adjacent
    const float* weight;   // [width]
    const float* bias;     // [width], or null
    const void* residual;  // [M, G, width], dense: added to the result, in its type; or null
    const void* over;      // [M, over_width], G = 1: rows whose root mean square counts instead; or null
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
    kRinglineClampedSwiglu = 4,  // (min(max(up, −limit), limit) + 1) · g · σ(α · g) with g = min(gate, limit); experts only
    kRinglineSigmoidGate = 5,
    kRinglineRelu2 = 6,
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

// residual + σ(logit) · x of the G groups of M rows. The width of a group is a multiple of 16.
struct RinglineSigmoidGate {
    const void* x;         // [M, G, width]
    const float* logits;   // [M, G]
    const void* residual;  // [M, G, width]; or null
    void* output;          // [M, G, width]; may be the residual
    int64_t rows, groups, width;
    int32_t number_type;
    int32_t num_threads;
};

// Normalizes queries and keys (and values), then rotates queries and keys, in place. D, the head size, is a
// multiple of 16; zeros follow the first mean_width numbers of a head.
struct RinglineRotation {
    void* heads;                             // [T, …]: queries, then keys, then values
    const float *cos, *sin;                  // [T, rotary_dim / 2]
    const float* query_scales;               // [T]: factors of the queries; or null
    const float *query_weight, *key_weight;  // [D]; null: not normalized
    const float* value_weight;               // [D]; null: values stay
    int64_t rows, stride;                    // elements from one row to the next
    int64_t head_stride;                     // from one head to the next
    int32_t num_heads, num_kv_heads, head_dim, mean_width;
    int32_t rotary_dim;   // the first numbers of a head; 0: no rotation
    int32_t interleaved;  // pairs are 2i and 2i + 1, instead of i and i + rotary_dim / 2
    int32_t number_type;
    int32_t num_threads;
    float epsilon;
};

enum RinglineStreamsKind : int32_t {
    kRinglinePredict = 0,      // each of the n streams, plus the others times n² coefficients
    kRinglineCorrect = 1,      // each, plus the change of the active one, the update − the stream, times 1 + a coefficient
    kRinglineAddToOthers = 2,  // each, the first excepted, plus the update
    kRinglineCopy = 3,
};

// n residual streams of each of M rows (AltUp). Coefficients are products of the weight and tanh of the row's logits. n is
// at most 8, the width a multiple of 16.
struct RinglineStreams {
    const void* x;          // [M, n, width]
    const void* update;     // [M, width], or null
    const float* logits;    // [M, n], or null
    const float* weight;    // [coefficients, n], or null
    const float* scale;     // [width]: factors of active_output; or null
    void* output;           // [M, n, width], or another order
    void* active_output;    // [M, width]: the output's active stream once more; or null
    const RinglineLoraStep* adapters;  // whose rows may have weights of their own; or null
    int64_t rows, width;
    int64_t output_stride, output_stream_stride;  // elements from one row, and one stream, to the next
    int32_t streams, active;
    int32_t kind;
    int32_t lora_layer;  // the weight's number
    int32_t number_type;
    int32_t num_threads;
};

// (x · √(mean of the target's squares ÷ max(mean of x's squares, least)) + residual) · scale, for G groups of each of M
// rows. Zeros follow the first mean_width numbers of each.
struct RinglineMagnitude {
    const void* x;         // [M, G, width], dense
    const void* target;    // [M, width]
    const void* residual;  // [M, width], G = 1; or null
    void* output;          // [M, G, width]; where the target leads, it is the first of G + 1
    int64_t rows, groups, width, mean_width;
    int64_t target_stride, residual_stride, output_stride;  // elements from one row to the next
    int32_t leads;
    int32_t number_type;
    int32_t num_threads;
    float least;
    float scale;
};

// x becomes max(0, x − cutoff) in M rows: the mean of the row's numbers in `over`, plus some deviations. Of those, all
// but `count` are padding: zeros.
struct RinglineCutoff {
    void* x;           // [M, width]
    const void* over;  // [M, over_width]; may begin with x
    int64_t rows, width, over_width, count;
    int64_t x_stride, over_stride;  // elements from one row to the next
    int32_t number_type;
    int32_t num_threads;
    float deviations;
};

// Ops on states, of S sequences with T rows: which slots hold them, see engine_core/states/base.py. Sequence s owns rows
// query_starts[s] … query_starts[s + 1] − 1, starts from slot sources[s], or from zeros if that is negative, and makes
// saves save_starts[s] … save_starts[s + 1] − 1: the state after save_rows[i], ascending, goes to save_slots[i]. The last
// save follows the last row.

// A convolution of W taps over each of C channels, the newest row last: silu(Σ weight · (x · gate) + bias) · output_gate.
// x · gate is rounded to the number type, in which states keep it. C is a multiple of 16.
struct RinglineShortConvolution {
    const void* x;            // [T, C]
    const void* gate;         // [T, C], or null
    const void* output_gate;  // [T, C], or null
    const float* weight;      // [W, C]
    const float* bias;        // [C], or null
    void* output;             // [T, C], dense
    void* states;             // [slots, W − 1, C]
    const int32_t *query_starts, *sources, *save_starts, *save_rows, *save_slots;
    int64_t x_stride, gate_stride, output_gate_stride;  // elements from one row to the next
    int64_t channels;
    int32_t taps, silu;
    int32_t num_seqs;
    int32_t number_type;
    int32_t num_threads;
};

// A linear recurrence of H heads; H / G neighbouring ones share a key head. With s = softplus(decay + bias), limited to
// [least_step, most_step], f = exp(s · rate) and u = σ(update) · (v − k · f · S), or s · v without updates, a head's state S
// becomes f · S + kᵀ · u, and its output is query_scale · q · S + skip · v. K and V are multiples of 16.
struct RinglineRecurrence {
    const void *query, *key;      // [T, G, K]
    const void* value;            // [T, H, V]
    const void *decay, *update;   // [T, H]; update: or null
    const float *rates, *biases;  // [H]
    const float* skips;           // [H], or null: zeros
    void* output;                 // [T, H, V], dense
    float* states;                // [slots, H, K, V]
    const int32_t *query_starts, *sources, *save_starts, *save_rows, *save_slots;
    int64_t query_stride, key_stride, value_stride;                 // elements from one row to the next
    int64_t query_head_stride, key_head_stride, value_head_stride;  // from one head to the next
    int64_t decay_stride, update_stride;
    int32_t num_heads, num_key_heads, key_dim, value_dim;
    int32_t num_seqs;
    int32_t number_type;
    int32_t input_type;  // of decay and update
    int32_t normalize;   // whether to divide queries and keys by √(Σ x² + epsilon) first
    int32_t num_threads;
    float query_scale, epsilon;
    float least_step, most_step;
};

// Normalizes G groups of each of M rows by root mean square, times the weight, and multiplies by silu(gate) after that, or
// before it. The width is a multiple of 16; zeros follow the first mean_width numbers of a group.
struct RinglineGatedNorm {
    const void *x, *gate;  // [M, G, width]
    const float* weight;   // [G, width], or [width] for all
    void* output;          // [M, G, width], dense
    int64_t rows, groups, width, mean_width;
    int64_t x_stride, gate_stride;              // elements from one row to the next
    int64_t x_group_stride, gate_group_stride;  // from one group to the next
    int64_t weight_group_stride;                // 0: one weight for all
    int32_t norm_before_gate;
    int32_t number_type;
    int32_t num_threads;
    float epsilon;
};

// A weight [N, K] rounded to 8 bits. Zeros pad N, also of the per-output arrays, to whole panels of 32,
// and K to whole words of 4.
struct RinglineInt8Weight {
    const int8_t* weight;        // [N / 32, K / 4, 32, 4], −127 … 127
    const float* scales;         // [N]
    const int32_t* column_sums;  // [N], of the weights
    const float* bias;           // [N], or null
    int64_t in_features, out_features;
};

// Makes one from [N, K] numbers; the memory written to must hold zeros.
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

// Rounds M rows of a weight to 4 bits, in groups; 256 inputs share an outer scale and an outer minimum (bfloat16): see
// quantized/int4_round.h. G = ⌈K / group_size⌉, O = ⌈K / 256⌉.
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

// GGUF's block types, as in quantization/gguf_blocks.py.
enum RinglineBlockType : int32_t {
    kRinglineQ4_0 = 0, kRinglineQ4_1, kRinglineQ5_0, kRinglineQ5_1, kRinglineQ8_0, kRinglineQ2_K, kRinglineQ3_K,
    kRinglineQ4_K, kRinglineQ5_K, kRinglineQ6_K, kRinglineIQ4_NL, kRinglineIQ4_XS, kRinglineMXFP4
};

// Splits M rows of B blocks into parts: see quantized/gguf_blocks.h. A block of 32 numbers has a scale of two bytes; one of
// 256 has outer scales, and a byte of scale per group.
struct RinglineGgufBlocks {
    const uint8_t* input;    // [M, B, bytes of a block]
    uint8_t* codes;          // [M, B, numbers of a block]
    uint8_t* scales;         // [M, B, …]
    uint8_t* outer_scales;   // [M, B, 2]; this and the rest if the type has them, else null
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
    kRinglineRanksDisagree = 3,  // the ranks' calls differ
};

// The start of the memory that a host's ranks share; the ranks' calls follow. See threads/barrier.h.
struct RinglineRanks {
    int32_t arrived;   // ranks waiting
    int32_t round;     // barriers passed by all
    int32_t sleepers;  // ranks waiting asleep
    int32_t aborted;   // whether all further calls fail
};

// Waits until all ranks have made the call.
struct RinglineBarrier {
    RinglineRanks* ranks;
    int64_t* held;  // [4]: this rank's bits; become the OR of all ranks'; or null
    int32_t rank, size;
};

// M rows of G rows each, of which every rank has some columns or rows. Each rank copies its part to shared
// memory, and waits for the others. Copies bytes, not numbers.
struct RinglineGather {
    RinglineRanks* ranks;
    const void* x;       // [M, G, …], this rank's
    const int32_t* ids;  // [M, G]: copies only rows with an id in [first_id, end_id); null: all
    void* output;        // [M, G, …], shared: start of this rank's columns
    int64_t* held;       // as in RinglineBarrier
    int64_t rows, groups;
    int64_t row_bytes;                // of one of the M · G rows of x
    int64_t x_stride, x_group_stride;  // bytes from one of M to the next, and from one of G to the next
    int64_t output_stride;             // bytes from one of M · G to the next
    int64_t place, layout;             // place in the shared memory, and a digest of the columns; equal on all ranks
    int32_t first_id, end_id;
    int32_t rank, size;
    int32_t num_threads;
};

// Every kernel: its name and argument; it returns a RinglineResult. The kernel tables
// (kernel_table.h), their replay (threads/replay.h) and Python follow these lists. `argmax` outputs [M] int64:
// where each row of a linear layer's result is greatest.
#define RINGLINE_KERNELS(X)                   \
    X(attention, RinglineAttention)           \
    X(linear, RinglineLinear)                 \
    X(argmax, RinglineLinear)                 \
    X(grouped_linear, RinglineGroupedLinear)  \
    X(lora, RinglineLora)                     \
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
    X(streams, RinglineStreams)               \
    X(match_magnitude, RinglineMagnitude)     \
    X(cut_off, RinglineCutoff)                \
    X(short_convolution, RinglineShortConvolution) \
    X(recurrence, RinglineRecurrence)         \
    X(gated_norm, RinglineGatedNorm)          \
    X(select_rows, RinglineSelection)         \
    X(route, RinglineRouting)                 \
    X(experts, RinglineExperts)               \
    X(barrier, RinglineBarrier)               \
    X(gather, RinglineGather)

// Kernels of 8-bit weights are separate: instructions for bytes differ from those for bfloat16, and a processor may
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
    int32_t kind;  // the kernel's index in both lists, concatenated
    void* kernel;
    const void* arguments;
};

// The arguments of captured calls that differ from step to step. As in RinglineAttention, and in the ops on states.
struct RinglineStep {
    const int32_t* query_starts;
    const int32_t* seq_lens;              // this and the next two: null if no layer attends
    const int32_t* const* block_tables;   // of each group
    const int32_t* const* visible_until;  // of each group: [rows], or null
    const int32_t *state_sources, *save_starts, *save_rows, *save_slots;  // null if no layer keeps a state
    int64_t block_table_stride;           // of all of them
    int64_t rows;
    const int64_t* selected;  // [num_selected]: the rows that remain after a selection; null: the first
    int64_t num_selected;
    int32_t num_seqs;
    int32_t num_threads;
};

}  // extern "C"
