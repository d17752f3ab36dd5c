// What Python and the native step say to each other: plain data and a few functions.
//
// Python owns every array named here and keeps it alive until `pl_close`; native code never frees one. Sizes were
// checked before by Python, which knows the model's name and can say what is wrong.
#pragma once

#include <cstdint>

// How a matrix lies in memory. Rows come in blocks of 16, padded with zeros; columns in groups of 32. Blocks follow each
// other, and in a block its groups: codes, then scales, then minima.
//
//   codes of 4 bits  uint8 [4 j][16 row][4 b]   low nibble: column 4 j + b of the group, high nibble: 16 + 4 j + b
//   codes of 8 bits  int8  [8 j][16 row][4 b]   column 4 j + b of the group
//   scales, minima   [16 row], or [2 half][16 row] where each 16 columns have their own
//
// Floats have no groups; a block is [columns rounded up to 2, / 2][16 row][2], pairs of columns side by side, except
// that float32 is [column][16 row].
enum PlFormat : int32_t {
  PL_U4_F16_MIN = 0,    // q * d + m       float16 d, m   GGUF Q4_1
  PL_U4_F16 = 1,        // (q - 8) * d     float16 d      GGUF Q4_0
  PL_U4_F32_MIN = 2,    // q * d + m       float32 d, m   Q4_K, INT4 with zero points
  PL_U4_F32 = 3,        // (q - 8) * d     float32 d      INT4 of any group that 32 divides
  PL_I8_F16 = 4,        // q * d           float16 d      GGUF Q8_0, Q5_0
  PL_I8_F32_MIN = 5,    // q * d + m       float32 d, m   Q5_1, Q5_K
  PL_I8_F32_MIN_16 = 6, // as above, d and m for each 16 columns: Q2_K, Q3_K, Q6_K
  PL_BF16 = 7,
  PL_F16 = 8,
  PL_F32 = 9,
};

// A linear map: y = x W^T + bias.
struct PlMatrix {
  int32_t rows, columns;  // as the model counts them, without padding
  int32_t format;         // PlFormat
  int32_t reserved;
  const uint8_t *data;    // 64-byte aligned
  const float *bias;      // [rows] or null
};

struct PlLayer {
  PlMatrix q, k, v, out, gate, up, down;
  const float *attention_norm;  // [hidden]
  const float *mlp_norm;        // [hidden]
  const float *q_norm, *k_norm; // [head_dim], or null for models without
  float k_scale, v_scale;       // what the values of e4m3 planes are multiplied by; 1 for other formats
  int64_t plane;                // byte offset in a page of [2 * kv_heads][64 tokens][head_dim]: keys, then values
};

enum PlKv : int32_t {
  PL_KV_F32 = 0,
  PL_KV_BF16 = 1,
  PL_KV_E4M3 = 2,         // scales k_scale, v_scale of the layer
  PL_KV_E4M3_SCALED = 3,  // behind the values of a plane: float32 [2 * kv_heads][64 tokens], the scale of each row
};

struct PlModel {
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
  int32_t rope_dim;          // values of a head that turn, from its first on; 0 for none
  int32_t rope_interleaved;  // pairs (2i, 2i + 1) instead of (i, i + rope_dim / 2)
  int32_t kv;                // PlKv
  float eps;
  float rope_scale;             // cosine and sine are multiplied by it
  const float *rope_frequencies; // [rope_dim / 2] radians per position
  const PlLayer *layer;         // [layers]
  const float *norm;            // [hidden]
  PlMatrix embedding;           // [vocab, hidden]
  PlMatrix head;                // [vocab, hidden]; equal to `embedding` in models with a tied head
};

// How the token of a row is drawn: the semantics of `paceline.engine.sampling.sample`.
struct PlDraw {
  double temperature;  // 0: the likeliest
  double top_p, min_p;
  uint64_t seed;       // with the row's position it gives the random number that picks among ids, in their order
  int32_t top_k;       // 0 for all
  int32_t wanted;      // 0: nobody asks for this row's token
  const uint32_t *mask;  // [ceil(vocab / 32)] bit i % 32 of word i / 32: whether it may be token i; null for any
};

// One batch: `paceline.engine.step.Step` of one page group.
struct PlStep {
  int32_t tokens_count, sequences, logits_count, table_width, moves_count, reserved;
  const int32_t *tokens;        // [T]
  const int32_t *positions;     // [T]
  const int64_t *slots;         // [T] page * 64 + offset
  const int32_t *parents;       // [T] row of the parent for draft rows, else -1
  const int32_t *query_starts;  // [S + 1]
  const int32_t *contexts;      // [S]
  const int32_t *page_table;    // [S, table_width]
  const int32_t *logit_rows;    // [R]
  const int64_t *moves;         // [M, 2] slots copied from -> to before anything else
  float *logits;                // [R, vocab]; rows that are drawn with a mask have -infinity where it excludes
  const PlDraw *draws;          // [R] how tokens are drawn; null when logits alone are wanted
  int32_t *drawn;               // [R] the tokens, -1 where logits hold no distribution; unused without `draws`
};

// What Python finds by name; everything else stays inside the library.
#define PL_EXPORT __attribute__((visibility("default")))

extern "C" {
struct PlEngine;

// Null when there is no memory or no thread for it.
PL_EXPORT PlEngine *pl_open(const PlModel *model, int32_t threads);
// `pages` is the pool: uint8 [count, page_bytes].
PL_EXPORT void pl_bind(PlEngine *engine, uint8_t *pages, int64_t count, int64_t page_bytes);
PL_EXPORT void pl_step(PlEngine *engine, const PlStep *step);
PL_EXPORT void pl_close(PlEngine *engine);
}
