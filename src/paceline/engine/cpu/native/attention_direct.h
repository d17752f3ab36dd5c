// Attention of a few queries to a run of keys that lie one behind the other in a page, decoded as they are read.
//
// The order of operations is fixed for each query and key, whatever else is computed beside them, and the same as in
// attention_tile.h:
//
//   score   lane l of a vector adds up q[d] k[d] for d = l, l + kLanes, ... in order; then the lanes as reduce_add does
//   value   out[d] adds up p[j] v[j][d] in order of keys
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv.h"
#include "simd.h"

namespace paceline {

// scores[q][j] = query q . key j.
//
// queries: [kQueries][query_stride], zeros from `dim` to the next multiple of kLanes
// keys: kKeys rows of kFormat, `row_bytes` apart
template <PlKv kFormat, int kQueries, int kKeys>
static inline void score_block(const float *queries, ptrdiff_t query_stride, const uint8_t *keys, int64_t row_bytes,
                               int dim, float *scores, ptrdiff_t score_stride) {
  using Reader = KvReader<kFormat>;
  Vf sums[kQueries][kKeys];
  for (auto &of_query : sums)
    for (Vf &sum : of_query) sum = zero();
  const auto add = [&](int d, const Vf(&key)[kKeys]) {
    for (int q = 0; q < kQueries; ++q) {
      const Vf x = load(queries + q * query_stride + d);
      for (int j = 0; j < kKeys; ++j) sums[q][j] = fma(x, key[j], sums[q][j]);
    }
  };
  int d = 0;
  Vf key[kKeys];
  for (; d + kLanes <= dim; d += kLanes) {
    for (int j = 0; j < kKeys; ++j) key[j] = Reader::load_at(keys + j * row_bytes, d);
    add(d, key);
  }
  if (d < dim) {
    for (int j = 0; j < kKeys; ++j) key[j] = Reader::load_at(keys + j * row_bytes, d, dim - d);
    add(d, key);
  }
  for (int q = 0; q < kQueries; ++q) {
    float *to = scores + q * score_stride;
    if constexpr (kKeys == 4) {
      reduce_add4(to, sums[q][0], sums[q][1], sums[q][2], sums[q][3]);
    } else {
      for (int j = 0; j < kKeys; ++j) to[j] = reduce_add(sums[q][j]);
    }
  }
}

// out[q][d] += p[q][j] v[j][d] over `count` rows in order, for kVectors vectors from value d on; only `width` of the
// values exist when kVectors is 1.
template <PlKv kFormat, int kQueries, int kVectors>
static inline void value_block(const float *weights, ptrdiff_t weight_stride, const uint8_t *values, int64_t row_bytes,
                               int count, int d, int width, float *out, ptrdiff_t out_stride) {
  using Reader = KvReader<kFormat>;
  Vf sums[kQueries][kVectors];
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) sums[q][v] = load(out + q * out_stride + d + v * kLanes);
  for (int j = 0; j < count; ++j) {
    const uint8_t *row = values + j * row_bytes;
    Vf value[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      value[v] = kVectors == 1 && width < kLanes ? Reader::load_at(row, d, width) : Reader::load_at(row, d + v * kLanes);
    }
    for (int q = 0; q < kQueries; ++q) {
      const Vf p = broadcast(weights[q * weight_stride + j]);
      for (int v = 0; v < kVectors; ++v) sums[q][v] = fma(p, value[v], sums[q][v]);
    }
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVectors; ++v) store(out + q * out_stride + d + v * kLanes, sums[q][v]);
}

template <PlKv kFormat, int kQueries>
static void score_queries(const float *queries, ptrdiff_t query_stride, const uint8_t *keys, int64_t row_bytes,
                          int count, int dim, float *scores, ptrdiff_t score_stride) {
  int j = 0;
  for (; j + 4 <= count; j += 4) {
    score_block<kFormat, kQueries, 4>(queries, query_stride, keys + j * row_bytes, row_bytes, dim, scores + j,
                                      score_stride);
  }
  for (; j < count; ++j) {
    score_block<kFormat, kQueries, 1>(queries, query_stride, keys + j * row_bytes, row_bytes, dim, scores + j,
                                      score_stride);
  }
}

template <PlKv kFormat, int kQueries>
static void value_queries(const float *weights, ptrdiff_t weight_stride, const uint8_t *values, int64_t row_bytes,
                          int count, int dim, float *out, ptrdiff_t out_stride) {
  // As many sums as registers hold, beside what is loaded.
  constexpr int kVectors = kQueries == 1 ? 8 : kQueries == 4 ? 2 : 4;
  int d = 0;
  for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes) {
    value_block<kFormat, kQueries, kVectors>(weights, weight_stride, values, row_bytes, count, d, kLanes, out,
                                             out_stride);
  }
  for (; d < dim; d += kLanes) {
    value_block<kFormat, kQueries, 1>(weights, weight_stride, values, row_bytes, count, d, dim - d, out, out_stride);
  }
}

// Calls `run(std::integral_constant<int, n>, first)` for groups of at most kMost of `count` queries.
template <int kMost, typename Run>
static inline void in_groups(int count, const Run &run) {
  int first = 0;
  for (; count - first >= kMost; first += kMost) run(std::integral_constant<int, kMost>(), first);
  if constexpr (kMost > 1) {
    if (first < count) in_groups<kMost - 1>(count - first, [&](auto n, int more) { run(n, first + more); });
  }
}

constexpr int kDirectQueries = 4;

// scores [queries][score_stride] of `count` keys.
template <PlKv kFormat>
static void score_run(const float *queries, ptrdiff_t query_stride, int query_count, const uint8_t *keys,
                      int64_t row_bytes, int count, int dim, float *scores, ptrdiff_t score_stride) {
  in_groups<kDirectQueries>(query_count, [&](auto n, int q) {
    score_queries<kFormat, n>(queries + q * query_stride, query_stride, keys, row_bytes, count, dim,
                              scores + q * score_stride, score_stride);
  });
}

// out [queries][out_stride] += weights [queries][weight_stride] times `count` rows of values.
template <PlKv kFormat>
static void value_run(const float *weights, ptrdiff_t weight_stride, int query_count, const uint8_t *values,
                      int64_t row_bytes, int count, int dim, float *out, ptrdiff_t out_stride) {
  in_groups<kDirectQueries>(query_count, [&](auto n, int q) {
    value_queries<kFormat, n>(weights + q * weight_stride, weight_stride, values, row_bytes, count, dim,
                              out + q * out_stride, out_stride);
  });
}

}  // namespace paceline
