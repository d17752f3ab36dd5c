// Products with matrices of floats. Even and odd columns have a sum each, which products join column by column:
// sum = fma(w, x, sum). The result is even + odd.
#pragma once

#include "dot_floats.h"
#include "matmul_product.h"

namespace paceline {

// Up to twice so many tokens read weights as they lie in the matrix: sums of both kinds hide the latency of a product.
constexpr int kDirectTile = kLanes == 16 ? 4 : 2;

// More tokens share weights that were converted to float32, and have one kind of sums at a time in registers.
#if defined(__AVX2__)
constexpr int kFloatTile = kLanes == 16 ? 8 : 6;
#else
constexpr int kFloatTile = 2;
#endif

// So many pairs of columns are converted at once, 8 KB of float32, and serve so many tokens.
constexpr int kFloatPairs = 64, kFloatChunk = 64;

// The sums of a token for 16 rows.
struct FloatSums {
  alignas(64) float even[kBlockRows], odd[kBlockRows];
};

// Adds `pairs` pairs of columns to the sums of N tokens.
template <PlFormat F, int N>
__attribute__((noinline)) void add_pairs(const uint8_t *weights, int pairs, const float *const *rows, FloatSums *sums) {
  Vf even[N][kVectors], odd[N][kVectors];
  const float *x[N];
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) {
    x[n] = rows[n];
    PACELINE_UNROLL
    for (int v = 0; v < kVectors; v++) even[n][v] = load(sums[n].even + v * kLanes), odd[n][v] = load(sums[n].odd + v * kLanes);
  }
  for (int p = 0; p < pairs; p++, weights += pair_bytes(F)) {
    prefetch<pair_bytes(F)>(weights + kAhead);
    PACELINE_UNROLL
    for (int v = 0; v < kVectors; v++) {
      Vf left, right;
      load_pair<F>(weights, v * kLanes, &left, &right);
      PACELINE_UNROLL
      for (int n = 0; n < N; n++) {
        even[n][v] = fma(left, broadcast(x[n][2 * p]), even[n][v]);
        odd[n][v] = fma(right, broadcast(x[n][2 * p + 1]), odd[n][v]);
      }
    }
  }
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) {
    PACELINE_UNROLL
    for (int v = 0; v < kVectors; v++) store(sums[n].even + v * kLanes, even[n][v]), store(sums[n].odd + v * kLanes, odd[n][v]);
  }
}

// Adds every other column: weights[2 c] is a column of 16 rows, rows[n][2 c] its activation, c in [0, count).
template <int N>
__attribute__((noinline)) void add_columns(const float (*weights)[kBlockRows], int count, const float *const *rows,
                                           float *const *sums) {
  Vf s[N][kVectors];
  const float *x[N];
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) {
    x[n] = rows[n];
    PACELINE_UNROLL
    for (int v = 0; v < kVectors; v++) s[n][v] = load(sums[n] + v * kLanes);
  }
  for (int c = 0; c < 2 * count; c += 2) {
    Vf w[kVectors];
    PACELINE_UNROLL
    for (int v = 0; v < kVectors; v++) w[v] = load(weights[c] + v * kLanes);
    PACELINE_UNROLL
    for (int n = 0; n < N; n++) {
      const Vf all = broadcast(x[n][c]);
      PACELINE_UNROLL
      for (int v = 0; v < kVectors; v++) s[n][v] = fma(w[v], all, s[n][v]);
    }
  }
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) {
    PACELINE_UNROLL
    for (int v = 0; v < kVectors; v++) store(sums[n] + v * kLanes, s[n][v]);
  }
}

// Pairs of columns as float32, [pairs][even, odd][16 row].
template <PlFormat F>
inline void convert_pairs(const uint8_t *weights, int pairs, float (*out)[kBlockRows]) {
  for (int p = 0; p < pairs; p++, weights += pair_bytes(F), out += 2) {
    prefetch<pair_bytes(F)>(weights + kAhead);
    for (int first = 0; first < kBlockRows; first += kLanes) {
      Vf even, odd;
      load_pair<F>(weights, first, &even, &odd);
      store(out[0] + first, even);
      store(out[1] + first, odd);
    }
  }
}

// The sums of up to kFloatChunk tokens for a block of 16 rows.
template <PlFormat F>
inline void multiply_block(const uint8_t *block, int columns, const float *const *rows, int tokens, FloatSums *sums) {
  const int pairs = columns / 2;
  std::memset(sums, 0, size_t(tokens) * sizeof *sums);
  if (tokens <= 2 * kDirectTile) {
    for_tiles<kDirectTile, kDirectTile>(
        tokens, [&](int first, auto size) { add_pairs<F, size>(block, pairs, rows + first, sums + first); });
  } else {
    alignas(64) float converted[2 * kFloatPairs][kBlockRows];
    const float *x[kFloatChunk];
    float *to[kFloatChunk];
    for (int p = 0; p < pairs; p += kFloatPairs) {
      const int some = std::min(kFloatPairs, pairs - p);
      convert_pairs<F>(block + p * pair_bytes(F), some, converted);
      for (int side = 0; side < 2; side++) {
        for (int t = 0; t < tokens; t++) x[t] = rows[t] + 2 * p + side, to[t] = side ? sums[t].odd : sums[t].even;
        for_tiles<kFloatTile, kFloatTile>(
            tokens, [&](int first, auto size) { add_columns<size>(converted + side, some, x + first, to + first); });
      }
    }
  }
  if (columns % 2 == 0) return;
  // The last column is an even one. Only float32 has no odd one beside it.
  alignas(64) float last[2][kBlockRows];
  const uint8_t *pair = block + pairs * pair_bytes(F);
  if (F == PL_F32) {
    std::memcpy(last, pair, sizeof last[0]);
  } else {
    convert_pairs<F>(pair, 1, last);
  }
  for (int t = 0; t < tokens; t++) {
    const float *x = rows[t] + columns - 1;
    float *even = sums[t].even;
    add_columns<1>(last, 1, &x, &even);
  }
}

template <PlFormat F>
void multiply_floats(const Product &product) {
  const int columns = product.w.columns;
  FloatSums sums[kFloatChunk];
  const float *rows[kFloatChunk];
  for (int begin = 0; begin < product.tokens; begin += kFloatChunk) {
    const int count = std::min(kFloatChunk, product.tokens - begin);
    for (int t = 0; t < count; t++) rows[t] = product.in.values + ptrdiff_t{product.row_of(begin + t)} * columns;
    for (int row = product.row_begin; row < product.row_end; row += kBlockRows) {
      multiply_block<F>(block_of(product.w, row), columns, rows, count, sums);
      for (int t = 0; t < count; t++) {
        for (int r = 0; r < kBlockRows; r++) sums[t].even[r] += sums[t].odd[r];
        product.write(begin + t, row, load_rows(sums[t].even));
      }
    }
  }
}

}  // namespace paceline
