// Attention of a few queries to keys of a page, widened as they are read.
//
// The order of operations is fixed for each query and key, whatever else is computed beside them, and the same as in
// attention_tile.h:
//
//   score   one sum of q[d] k[d] over even d and one over odd d, in order; then these two added
//   value   out[d] adds up p[j] v[j][d] in order of keys
//
// Keys lie in lanes for scores and values of a row in lanes for values. So keys are packed first: 32 bits of each in turn,
// which moves two or four values at once, while rows are read as they lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kv.h"
#include "simd.h"

namespace paceline {

static inline int padded(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// Calls `run(std::integral_constant<int, n>, first)` for `count` queries in as few groups of at most kMost as there can be,
// of about equal size.
template <int kMost, typename Run>
static inline void in_groups(int count, const Run &run) {
  static_assert(kMost <= 6, "the switch below ends there");
  for (int first = 0, n; first < count; first += n) {
    const int groups = (count - first + kMost - 1) / kMost;
    n = (count - first + groups - 1) / groups;
    switch (n) {
      case 1: run(std::integral_constant<int, 1>(), first); break;
      case 2: run(std::integral_constant<int, std::min(2, kMost)>(), first); break;
      case 3: run(std::integral_constant<int, std::min(3, kMost)>(), first); break;
      case 4: run(std::integral_constant<int, std::min(4, kMost)>(), first); break;
      case 5: run(std::integral_constant<int, std::min(5, kMost)>(), first); break;
      default: run(std::integral_constant<int, kMost>(), first); break;
    }
  }
}

// `count` rows of `dwords` times 32 bits, `row_bytes` apart, to uint32 [dwords][kPageTokens]. Up to kLanes - 1 rows behind
// them are read and packed, too.
[[gnu::noinline]] static void pack_keys(const uint8_t *keys, int64_t row_bytes, int count, int dwords, uint8_t *packed) {
  for (int j = 0; j < count; j += kLanes) {
    for (int i = 0; i < dwords; i += kLanes) {
      const int n = std::min(kLanes, dwords - i);
      Vd block[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const uint8_t *from = keys + (j + r) * row_bytes + 4 * i;
        block[r] = n == kLanes ? load_dwords(from) : load_dwords(from, n);
      }
      transpose(block);
      for (int r = 0; r < n; ++r) store_dwords(packed + 4 * ((i + r) * kPageTokens + j), block[r]);
    }
  }
}

// scores[q][j] = query q . key j for kVectors * kLanes keys.
//
// queries: [kQueries][query_stride]
// packed: uint32 [dim / kPerDword][kPageTokens], from the first of these keys on
template <typename Reader, int kQueries, int kVectors>
static inline void score_block(const float *queries, ptrdiff_t query_stride, const uint8_t *packed, int dim,
                               float *scores, ptrdiff_t score_stride) {
  // Where 32 bits hold one value, every second of them has the parity; where they hold more, every second part of each.
  constexpr int kPer = Reader::kPerDword, kStep = kPer == 1 ? 2 : 1, kParts = kPer == 1 ? 1 : kPer / 2;
  unrolled<2>([&](auto parity) {
    Vf sums[kQueries][kVectors];
    unrolled<kQueries>([&](auto q) { unrolled<kVectors>([&](auto v) { sums[q][v] = zero(); }); });
    for (int i = kPer == 1 ? parity : 0; i < dim / kPer; i += kStep) {
      unrolled<kParts>([&](auto half) {
        constexpr int kPart = kPer == 1 ? 0 : 2 * half + parity;
        Vf x[kQueries];
        unrolled<kQueries>([&](auto q) { x[q] = broadcast(queries[q * query_stride + i * kPer + kPart]); });
        unrolled<kVectors>([&](auto v) {
          const Vf key = Reader::load_part(packed + 4 * (i * kPageTokens + v * kLanes), kPart);
          unrolled<kQueries>([&](auto q) { sums[q][v] = fma(x[q], key, sums[q][v]); });
        });
      });
    }
    unrolled<kQueries>([&](auto q) {
      unrolled<kVectors>([&](auto v) {
        float *to = scores + q * score_stride + v * kLanes;
        store(to, parity == 0 ? sums[q][v] : load(to) + sums[q][v]);
      });
    });
  });
}

// Where a reader's vectors of a row of values lie: whole blocks of kPerDword vectors, whose lanes hold the values that
// share 32 bits, then vectors as they lie in the row. Gives the value at a position of a state or of a widened row.
template <typename Reader>
static inline int value_at(int position, int dim) {
  constexpr int kBlock = Reader::kPerDword * kLanes;
  const int first = position / kBlock * kBlock, within = position % kBlock;
  if (first + kBlock > dim) return position;
  return first + within % kLanes * Reader::kPerDword + within / kLanes;
}

// Vector v of a row from position d on: of kVectors in whole blocks, or of one, of which `width` values exist.
template <typename Reader, int kVectors>
static inline Vf load_value(const uint8_t *row, int d, int v, int width) {
  constexpr int kPer = Reader::kPerDword;
  static_assert(kVectors % kPer == 0 || kVectors == 1, "parts of a block are read vector by vector");
  if (kVectors % kPer != 0) return width < kLanes ? Reader::load_at(row, d, width) : Reader::load_at(row, d);
  return Reader::load_part(row + (d + v / kPer * kPer * kLanes) * 4 / kPer, v % kPer);
}

// out[q][d] += p[q][j] v[j][d] over `count` rows in order, for kVectors vectors from position d on.
template <typename Reader, int kQueries, int kVectors>
static inline void value_block(const float *weights, ptrdiff_t weight_stride, const uint8_t *values, int64_t row_bytes,
                               int count, int d, int width, float *out, ptrdiff_t out_stride) {
  Vf sums[kQueries][kVectors];
  unrolled<kQueries>([&](auto q) {
    unrolled<kVectors>([&](auto v) { sums[q][v] = load(out + q * out_stride + d + v * kLanes); });
  });
  for (int j = 0; j < count; ++j) {
    Vf p[kQueries];
    unrolled<kQueries>([&](auto q) { p[q] = broadcast(weights[q * weight_stride + j]); });
    unrolled<kVectors>([&](auto v) {
      const Vf value = load_value<Reader, kVectors>(values + j * row_bytes, d, v, width);
      unrolled<kQueries>([&](auto q) { sums[q][v] = fma(p[q], value, sums[q][v]); });
    });
  }
  unrolled<kQueries>([&](auto q) {
    unrolled<kVectors>([&](auto v) { store(out + q * out_stride + d + v * kLanes, sums[q][v]); });
  });
}

template <typename Reader, int kQueries>
[[gnu::noinline]] static void score_queries(const float *queries, ptrdiff_t query_stride, const uint8_t *packed,
                                            int count, int dim, float *scores, ptrdiff_t score_stride) {
  // At least eight sums, to hide the latency of fma.
  constexpr int kVectors = std::min(kQueries == 1 ? 8 : 4, kPageTokens / kLanes);
  for (int j = 0; j < count; j += kVectors * kLanes) {
    score_block<Reader, kQueries, kVectors>(queries, query_stride, packed + 4 * j, dim, scores + j, score_stride);
  }
}

template <typename Reader, int kQueries>
[[gnu::noinline]] static void value_queries(const float *weights, ptrdiff_t weight_stride, const uint8_t *values,
                                            int64_t row_bytes, int count, int dim, float *out, ptrdiff_t out_stride) {
  constexpr int kPer = Reader::kPerDword, kVectors = kQueries == 1 ? 8 : 4;
  int d = 0;
  for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes) {
    value_block<Reader, kQueries, kVectors>(weights, weight_stride, values, row_bytes, count, d, kLanes, out,
                                            out_stride);
  }
  for (; d + kPer * kLanes <= dim; d += kPer * kLanes) {
    value_block<Reader, kQueries, kPer>(weights, weight_stride, values, row_bytes, count, d, kLanes, out, out_stride);
  }
  for (; d < dim; d += kLanes) {
    value_block<Reader, kQueries, 1>(weights, weight_stride, values, row_bytes, count, d, dim - d, out, out_stride);
  }
}

constexpr int kDirectQueries = 3;

// scores [queries][score_stride] of `count` packed keys, at the beginning of a page. Scores behind them are written up to the
// page's end.
template <typename Reader>
static inline void score_run(const float *queries, ptrdiff_t query_stride, int query_count, const uint8_t *packed,
                             int count, int dim, float *scores, ptrdiff_t score_stride) {
  in_groups<kDirectQueries>(query_count, [&](auto n, int q) {
    score_queries<Reader, n>(queries + q * query_stride, query_stride, packed, count, dim, scores + q * score_stride,
                             score_stride);
  });
}

// out [queries][out_stride] += weights [queries][weight_stride] times `count` rows of values.
template <typename Reader>
static inline void value_run(const float *weights, ptrdiff_t weight_stride, int query_count, const uint8_t *values,
                             int64_t row_bytes, int count, int dim, float *out, ptrdiff_t out_stride) {
  in_groups<kDirectQueries>(query_count, [&](auto n, int q) {
    value_queries<Reader, n>(weights + q * weight_stride, weight_stride, values, row_bytes, count, dim,
                             out + q * out_stride, out_stride);
  });
}

}  // namespace paceline
