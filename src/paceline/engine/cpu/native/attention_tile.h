// Attention of many queries to the keys of a page, which is decoded once for all of them into the L1 cache.
//
// Bit for bit what attention_direct.h computes. Here a vector's lanes are keys, so the sums that lie in the lanes of one
// vector there are vectors of their own here, one for each class of d modulo kLanes, and are added in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention_direct.h"
#include "kv.h"
#include "simd.h"

namespace paceline {

constexpr int kClasses = kLanes == 16 ? 4 : 3;  // binary digits of a lane

// Query and vector counts of the blocks below: 12 sums, 2 vectors and a broadcast fit 16 registers.
constexpr int kBlockQueries = 6, kBlockVectors = 2;

// The lanes in the order in which reduce_add meets them: l and l + kLanes / 2 follow each other.
constexpr int class_of(int n) {
  int l = 0;
  for (int bit = 0; bit < kClasses; ++bit) l |= (n >> bit & 1) << (kClasses - 1 - bit);
  return l;
}

static inline int padded(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// Rows of a page [count][dim] to float32 [padded(dim)][kPageTokens]; up to kLanes - 1 rows behind them are read, too.
template <PlKv kFormat>
static void decode_keys(const uint8_t *keys, int64_t row_bytes, int count, int dim, float *out) {
  for (int j = 0; j < count; j += kLanes) {
    for (int d = 0; d < dim; d += kLanes) {
      Vf block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const uint8_t *row = keys + (j + i) * row_bytes;
        block[i] = dim - d < kLanes ? KvReader<kFormat>::load_at(row, d, dim - d) : KvReader<kFormat>::load_at(row, d);
      }
      transpose(block);
      for (int i = 0; i < kLanes; ++i) store(out + (d + i) * kPageTokens + j, block[i]);
    }
  }
}

// Rows of a page [count][dim] to float32 [count][padded(dim)].
template <PlKv kFormat>
static void decode_values(const uint8_t *values, int64_t row_bytes, int count, int dim, float *out) {
  const int width = padded(dim);
  for (int j = 0; j < count; ++j) {
    const uint8_t *row = values + j * row_bytes;
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(out + j * width + d, KvReader<kFormat>::load_at(row, d));
    if (d < dim) store(out + j * width + d, KvReader<kFormat>::load_at(row, d, dim - d));
  }
}

// scores[q][0..kBlockVectors * kLanes) for kQueries queries [kQueries][query_stride]; keys: [dim][kPageTokens].
template <int kQueries>
static inline void score_tile_block(const float *queries, ptrdiff_t query_stride, const float *keys, int dim,
                                    float *scores, ptrdiff_t score_stride) {
  // pending[i] holds the sum of 2^i classes that waits for as many others.
  Vf pending[kClasses][kQueries][kBlockVectors];
  for (int n = 0; n < kLanes; ++n) {
    Vf sums[kQueries][kBlockVectors];
    for (auto &of_query : sums)
      for (Vf &sum : of_query) sum = zero();
    for (int d = class_of(n); d < dim; d += kLanes) {
      Vf key[kBlockVectors];
      for (int v = 0; v < kBlockVectors; ++v) key[v] = load(keys + d * kPageTokens + v * kLanes);
      for (int q = 0; q < kQueries; ++q) {
        const Vf x = broadcast(queries[q * query_stride + d]);
        for (int v = 0; v < kBlockVectors; ++v) sums[q][v] = fma(x, key[v], sums[q][v]);
      }
    }
    int level = 0;
    for (; n >> level & 1; ++level) {
      for (int q = 0; q < kQueries; ++q)
        for (int v = 0; v < kBlockVectors; ++v) sums[q][v] = pending[level][q][v] + sums[q][v];
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kBlockVectors; ++v) {
        if (level == kClasses) {
          store(scores + q * score_stride + v * kLanes, sums[q][v]);
        } else {
          pending[level][q][v] = sums[q][v];
        }
      }
    }
  }
}

// scores [queries][score_stride] of `count` keys [dim][kPageTokens]; up to 2 * kLanes - 1 scores behind them are written.
static inline void score_tile(const float *queries, ptrdiff_t query_stride, int query_count, const float *keys, int count,
                              int dim, float *scores, ptrdiff_t score_stride) {
  for (int j = 0; j < count; j += kBlockVectors * kLanes) {
    in_groups<kBlockQueries>(query_count, [&](auto n, int q) {
      score_tile_block<n>(queries + q * query_stride, query_stride, keys + j, dim, scores + q * score_stride + j,
                          score_stride);
    });
  }
}

// out[q][d] += p[q][j] v[j][d] over `count` rows in order, for kVectors vectors. values: [count][width]
template <int kQueries, int kVectors>
static inline void value_tile_block(const float *weights, ptrdiff_t weight_stride, const float *values, int width,
                                    int count, float *out, ptrdiff_t out_stride) {
  Vf sums[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) sums[q][v] = load(out + q * out_stride + v * kLanes);
  for (int j = 0; j < count; ++j) {
    Vf value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load(values + j * width + v * kLanes);
    for (int q = 0; q < kQueries; ++q) {
      const Vf p = broadcast(weights[q * weight_stride + j]);
      for (int v = 0; v < kVectors; ++v) sums[q][v] = fma(p, value[v], sums[q][v]);
    }
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) store(out + q * out_stride + v * kLanes, sums[q][v]);
}

// out [queries][out_stride] += weights [queries][weight_stride] times `count` rows of values [count][padded(dim)].
static inline void value_tile(const float *weights, ptrdiff_t weight_stride, int query_count, const float *values,
                              int count, int dim, float *out, ptrdiff_t out_stride) {
  const int width = padded(dim);
  in_groups<kBlockQueries>(query_count, [&](auto n, int q) {
    const float *p = weights + q * weight_stride;
    float *to = out + q * out_stride;
    int d = 0;
    for (; d + kBlockVectors * kLanes <= width; d += kBlockVectors * kLanes) {
      value_tile_block<n, kBlockVectors>(p, weight_stride, values + d, width, count, to + d, out_stride);
    }
    if (d < width) value_tile_block<n, 1>(p, weight_stride, values + d, width, count, to + d, out_stride);
  });
}

}  // namespace paceline
