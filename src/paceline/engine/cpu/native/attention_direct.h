// Attention of a few queries to keys of a page, widened as they are read.
//
// The order of operations is fixed for each query and key, whatever else is computed beside them, and the
// same as in attention_tile.h:
//
//   score   adds up q[d] k[d] in order of d
//   value   out[d] adds up p[j] v[j][d] in order of keys
//
// Keys lie in lanes for scores and values of a row in lanes for values. So keys are packed first: 32 bits of
// each in turn, which moves two or four values at once, while rows are read as they lie.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kv.h"
#include "simd.h"

namespace paceline {

// Memory that is read after what is read now. Kernels ask for a line of it in each of their loops: pages lie
// anywhere, which is more than the processor foresees, and asking for a whole page at once would fill the
// queue of misses.
struct Ahead {
  const uint8_t *next = nullptr, *end = nullptr;

  void ask() {
    if (next >= end) return;
    __builtin_prefetch(next);
    next += 64;
  }
};

static inline int padded(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// Calls `run(std::integral_constant<int, n>, first)` for `count` queries in as few groups of at most kMost as
// there can be, of about equal size.
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

// `count` rows of `dwords` times 32 bits, `row_bytes` apart, to uint32 [dwords][kPageTokens]. Rows behind them
// are read and packed, too, up to the next multiple of kLanes.
[[gnu::noinline]] static void pack_keys(const uint8_t *keys, int64_t row_bytes, int count, int dwords,
                                        uint8_t *packed) {
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

// Bytes of packed keys before value d of the first one.
template <typename Reader>
static inline size_t packed_at(size_t d) {
  return d / Reader::kPerDword * (4 * kPageTokens) + d % Reader::kPerDword * Reader::kBytes;
}

// scores[q][j] = query q . key j for kVectors * kLanes keys.
//
// queries: [kQueries][query_stride]
// packed: uint32 [dim / kPerDword][kPageTokens], from the first of these keys on
template <typename Reader, int kQueries, int kVectors>
static inline void score_block(const float *queries, ptrdiff_t query_stride, const uint8_t *packed, int dim,
                               float *scores, ptrdiff_t score_stride, Ahead &ahead) {
  Vf sums[kQueries][kVectors];
  unrolled<kQueries>([&](auto q) { unrolled<kVectors>([&](auto v) { sums[q][v] = zero(); }); });
  for (size_t d = 0; d < static_cast<size_t>(dim); ++d) {
    ahead.ask();
    Vf x[kQueries];
    unrolled<kQueries>([&](auto q) { x[q] = broadcast((queries + q * query_stride)[d]); });
    const uint8_t *keys = packed + packed_at<Reader>(d);
    unrolled<kVectors>([&](auto v) {
      const Vf key = Reader::load_apart(keys + 4 * kLanes * v);
      unrolled<kQueries>([&](auto q) { sums[q][v] = fma(x[q], key, sums[q][v]); });
    });
  }
  unrolled<kQueries>([&](auto q) {
    unrolled<kVectors>([&](auto v) { store(scores + q * score_stride + v * kLanes, sums[q][v]); });
  });
}

// Where vectors of a row of values lie. Whole blocks of 4 * kLanes bytes become kPerDword vectors, each of
// values that lie 4 bytes apart; what is left of a row becomes vectors as it lies there. Gives the value at a
// position of a state or of a widened row.
template <typename Reader>
static inline int value_at(int position, int dim) {
  constexpr int kBlock = Reader::kPerDword * kLanes;
  const int first = position / kBlock * kBlock, within = position % kBlock;
  if (first + kBlock > dim) return position;
  return first + within % kLanes * Reader::kPerDword + within / kLanes;
}

// out[d] = value d of a state, times factor.
template <typename Reader>
static void finish_values(const float *values, int dim, float factor, float *out) {
  for (int p = 0; p < dim; ++p) out[value_at<Reader>(p, dim)] = values[p] * factor;
}

// The positions of a row that lie in whole blocks.
template <typename Reader>
static inline int in_blocks(int dim) {
  constexpr int kBlock = Reader::kPerDword * kLanes;
  return dim / kBlock * kBlock;
}

// out[q][d] += p[q][j] v[j][d] over `count` rows in order, for kVectors vectors from position d on; `load`
// reads one of a row.
template <int kQueries, int kVectors, typename Load>
static inline void value_block(const float *weights, ptrdiff_t weight_stride, const uint8_t *values,
                               int64_t row_bytes, int count, float *out, ptrdiff_t out_stride, Ahead &ahead,
                               const Load &load_value) {
  Vf sums[kQueries][kVectors];
  unrolled<kQueries>([&](auto q) {
    unrolled<kVectors>([&](auto v) { sums[q][v] = load(out + q * out_stride + v * kLanes); });
  });
  for (int j = 0; j < count; ++j) {
    ahead.ask();
    Vf p[kQueries];
    unrolled<kQueries>([&](auto q) { p[q] = broadcast((weights + q * weight_stride)[j]); });
    unrolled<kVectors>([&](auto v) {
      const Vf value = load_value(values + j * row_bytes, v);
      unrolled<kQueries>([&](auto q) { sums[q][v] = fma(p[q], value, sums[q][v]); });
    });
  }
  unrolled<kQueries>([&](auto q) {
    unrolled<kVectors>([&](auto v) { store(out + q * out_stride + v * kLanes, sums[q][v]); });
  });
}

// Vectors of keys or values for each number of queries: at least eight sums, to hide the latency of fma, and
// no more than 16 registers hold beside the queries' numbers and a vector.
template <int kQueries>
constexpr int kVectorsFor = kQueries == 1 ? 8 : kQueries < 4 ? 4 : 2;

template <typename Reader, int kQueries>
[[gnu::noinline]] static void score_queries(const float *queries, ptrdiff_t query_stride,
                                            const uint8_t *packed, int count, int dim, float *scores,
                                            ptrdiff_t score_stride, Ahead ahead) {
  constexpr int kVectors = std::min(kVectorsFor<kQueries>, kPageTokens / kLanes);
  for (int j = 0; j < count; j += kVectors * kLanes) {
    score_block<Reader, kQueries, kVectors>(queries, query_stride, packed + 4 * j, dim, scores + j,
                                            score_stride, ahead);
  }
}

template <typename Reader, int kQueries>
[[gnu::noinline]] static void value_queries(const float *weights, ptrdiff_t weight_stride,
                                            const uint8_t *values, int64_t row_bytes, int count, int dim,
                                            float *out, ptrdiff_t out_stride, Ahead ahead) {
  constexpr int kPer = Reader::kPerDword, kVectors = kVectorsFor<kQueries>;
  const int blocks = in_blocks<Reader>(dim);
  const auto apart = [](int vector) {
    return (vector / kPer * kPer * kLanes + vector % kPer) * Reader::kBytes;
  };
  int d = 0;
  for (; d + kVectors * kLanes <= blocks; d += kVectors * kLanes) {
    int at[kVectors];
    unrolled<kVectors>([&](auto v) { at[v] = apart(d / kLanes + v); });
    value_block<kQueries, kVectors>(
        weights, weight_stride, values, row_bytes, count, out + d, out_stride, ahead,
        [&](const uint8_t *row, auto v) { return Reader::load_apart(row + at[v]); });
  }
  for (; d < blocks; d += kLanes) {
    const int at = apart(d / kLanes);
    value_block<kQueries, 1>(weights, weight_stride, values, row_bytes, count, out + d, out_stride, ahead,
                             [&](const uint8_t *row, auto) { return Reader::load_apart(row + at); });
  }
  for (; d < dim; d += kLanes) {
    value_block<kQueries, 1>(weights, weight_stride, values, row_bytes, count, out + d, out_stride, ahead,
                             [&](const uint8_t *row, auto) {
                               return dim - d < kLanes ? Reader::load_at(row, d, dim - d)
                                                       : Reader::load_at(row, d);
                             });
  }
}

constexpr int kDirectQueries = 4;

// scores [queries][score_stride] of `count` packed keys, at the beginning of a page. Scores behind them are
// written up to the page's end.
template <typename Reader>
static inline void score_run(const float *queries, ptrdiff_t query_stride, int query_count,
                             const uint8_t *packed, int count, int dim, float *scores, ptrdiff_t score_stride,
                             Ahead ahead) {
  in_groups<kDirectQueries>(query_count, [&](auto n, int q) {
    score_queries<Reader, n>(queries + q * query_stride, query_stride, packed, count, dim,
                             scores + q * score_stride, score_stride, q == 0 ? ahead : Ahead{});
  });
}

// out [queries][out_stride] += weights [queries][weight_stride] times `count` rows of values.
template <typename Reader>
static inline void value_run(const float *weights, ptrdiff_t weight_stride, int query_count,
                             const uint8_t *values, int64_t row_bytes, int count, int dim, float *out,
                             ptrdiff_t out_stride, Ahead ahead) {
  in_groups<kDirectQueries>(query_count, [&](auto n, int q) {
    value_queries<Reader, n>(weights + q * weight_stride, weight_stride, values, row_bytes, count, dim,
                             out + q * out_stride, out_stride, q == 0 ? ahead : Ahead{});
  });
}

}  // namespace paceline
