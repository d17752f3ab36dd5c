// Attention of many queries to the keys of a page, which is widened once for all of them into the L1 cache.
//
// Bit for bit what attention_direct.h computes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_direct.h"
#include "kv.h"
#include "simd.h"

namespace paceline {

// Query and vector counts of the blocks below: 12 sums, 2 vectors and a broadcast fit 16 registers.
constexpr int kBlockQueries = 6, kBlockVectors = 2;

// Packed keys to float32 [dim][kPageTokens].
template <typename Reader>
[[gnu::noinline]] static void widen_keys(const uint8_t *packed, int count, int dim, float *out) {
  for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
    for (int j = 0; j < count; j += kLanes) {
      store(out + d * kPageTokens + j, Reader::load_apart(packed + packed_at<Reader>(d) + 4 * j));
    }
  }
}

// Rows of a page [count][dim] to float32 [count][padded(dim)], in the order of `value_at`.
template <typename Reader>
[[gnu::noinline]] static void widen_values(const uint8_t *values, int64_t row_bytes, int count, int dim,
                                           float *out) {
  constexpr int kPer = Reader::kPerDword;
  const int width = padded(dim), blocks = in_blocks<Reader>(dim);
  for (int j = 0; j < count; ++j) {
    const uint8_t *row = values + j * row_bytes;
    float *to = out + j * width;
    int d = 0;
    for (; d < blocks; d += kPer * kLanes) {
      unrolled<kPer>(
          [&](auto v) { store(to + d + v * kLanes, Reader::load_apart(row + (d + v) * Reader::kBytes)); });
    }
    for (; d < dim; d += kLanes) {
      store(to + d, dim - d < kLanes ? Reader::load_at(row, d, dim - d) : Reader::load_at(row, d));
    }
  }
}

// scores[q][0..kBlockVectors * kLanes) for queries [kQueries][query_stride] and keys [dim][kPageTokens].
template <int kQueries>
static inline void score_tile_block(const float *queries, ptrdiff_t query_stride, const float *keys, int dim,
                                    float *scores, ptrdiff_t score_stride) {
  Vf sums[kQueries][kBlockVectors];
  for (auto &of_query : sums)
    for (Vf &sum : of_query) sum = zero();
  for (int d = 0; d < dim; ++d) {
    Vf key[kBlockVectors];
    for (int v = 0; v < kBlockVectors; ++v) key[v] = load(keys + d * kPageTokens + v * kLanes);
    for (int q = 0; q < kQueries; ++q) {
      const Vf x = broadcast(queries[q * query_stride + d]);
      for (int v = 0; v < kBlockVectors; ++v) sums[q][v] = fma(x, key[v], sums[q][v]);
    }
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kBlockVectors; ++v) store(scores + q * score_stride + v * kLanes, sums[q][v]);
}

// scores [queries][score_stride] of `count` keys [dim][kPageTokens]; scores behind them are written up to the
// next multiple of kBlockVectors * kLanes.
[[gnu::noinline]] static void score_tile(const float *queries, ptrdiff_t query_stride, int query_count,
                                         const float *keys, int count, int dim, float *scores,
                                         ptrdiff_t score_stride) {
  in_groups<kBlockQueries>(query_count, [&](auto n, int q) {
    for (int j = 0; j < count; j += kBlockVectors * kLanes) {
      score_tile_block<n>(queries + q * query_stride, query_stride, keys + j, dim,
                          scores + q * score_stride + j, score_stride);
    }
  });
}

// out[q][d] += p[q][j] v[j][d] over `count` rows in order, for kVectors vectors. values: [count][width]
template <int kQueries, int kVectors>
static inline void value_tile_block(const float *weights, ptrdiff_t weight_stride, const float *values,
                                    int width, int count, float *out, ptrdiff_t out_stride) {
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

// out [queries][out_stride] += weights [queries][weight_stride] times values [count][padded(dim)].
[[gnu::noinline]] static void value_tile(const float *weights, ptrdiff_t weight_stride, int query_count,
                                         const float *values, int count, int dim, float *out,
                                         ptrdiff_t out_stride) {
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
