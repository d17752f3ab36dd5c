// Products with matrices of floats. Even and odd columns have a sum each, which products join column by column:
// sum = fma(w, x, sum). The result is even + odd.
#pragma once

#include "dot_floats.h"
#include "matmul_product.h"

namespace paceline {

// Tokens of a tile: their sums, two columns of weights and one activation are all registers.
constexpr int kFloatTile = kLanes == 16 ? 6 : 3;

// Pairs of columns that are converted at once for many tokens: 8 KB of float32.
constexpr int kFloatPairs = 64;

// The sums of a token for 16 rows.
struct FloatSums {
  Vf even[kVectors], odd[kVectors];
};

// Adds `pairs` pairs of columns to the sums of N tokens.
template <PlFormat F, int N>
__attribute__((noinline)) void add_pairs(const uint8_t *weights, int pairs, const float *const *rows, FloatSums *sums) {
  FloatSums s[N];
  const float *x[N];
  for (int n = 0; n < N; n++) s[n] = sums[n], x[n] = rows[n];
  for (int p = 0; p < pairs; p++, weights += pair_bytes(F)) {
    Vf even[kVectors], odd[kVectors];
    PACELINE_UNROLL
    for (int v = 0; v < kVectors; v++) load_pair<F>(weights, v * kLanes, &even[v], &odd[v]);
    PACELINE_UNROLL
    for (int n = 0; n < N; n++) {
      const Vf left = broadcast(x[n][2 * p]), right = broadcast(x[n][2 * p + 1]);
      PACELINE_UNROLL
      for (int v = 0; v < kVectors; v++) {
        s[n].even[v] = fma(even[v], left, s[n].even[v]);
        s[n].odd[v] = fma(odd[v], right, s[n].odd[v]);
      }
    }
  }
  for (int n = 0; n < N; n++) sums[n] = s[n];
}

// The last column of an odd number; `weights` are its pair.
template <PlFormat F>
inline void add_last_column(const uint8_t *weights, float x, FloatSums *sums) {
  for (int v = 0; v < kVectors; v++) {
    Vf even;
    if (F == PL_F32) {
      even = load(reinterpret_cast<const float *>(weights) + v * kLanes);
    } else {
      Vf padding;
      load_pair<F>(weights, v * kLanes, &even, &padding);
    }
    sums->even[v] = fma(even, broadcast(x), sums->even[v]);
  }
}

// Pairs of columns as PL_F32 has them.
template <PlFormat F>
inline void convert_pairs(const uint8_t *weights, int pairs, float *out) {
  for (int p = 0; p < pairs; p++, weights += pair_bytes(F), out += 2 * kBlockRows) {
    for (int first = 0; first < kBlockRows; first += kLanes) {
      Vf even, odd;
      load_pair<F>(weights, first, &even, &odd);
      store(out + first, even);
      store(out + kBlockRows + first, odd);
    }
  }
}

template <PlFormat F>
void multiply_floats(const Product &product) {
  const int columns = product.w.columns, pairs = columns / 2;
  FloatSums sums[kChunk];
  const float *rows[kChunk], *ahead[kChunk];
  alignas(64) float converted[kFloatPairs * 2 * kBlockRows];
  for (int begin = 0; begin < product.tokens; begin += kChunk) {
    const int count = std::min(kChunk, product.tokens - begin);
    for (int t = 0; t < count; t++) rows[t] = product.in.values + ptrdiff_t(product.row_of(begin + t)) * columns;
    for (int row = product.row_begin; row < product.row_end; row += kBlockRows) {
      const uint8_t *block = block_of(product.w, row);
      for (int t = 0; t < count; t++) sums[t] = FloatSums{};
      if (count <= kFloatTile) {
        run_tile<kFloatTile>(count, 0, [&](int, auto size) { add_pairs<F, size>(block, pairs, rows, sums); });
      } else {
        for (int p = 0; p < pairs; p += kFloatPairs) {
          const int some = std::min(kFloatPairs, pairs - p);
          convert_pairs<F>(block + p * pair_bytes(F), some, converted);
          for (int t = 0; t < count; t++) ahead[t] = rows[t] + 2 * p;
          for_tiles<kFloatTile, kFloatTile>(count, [&](int first, auto size) {
            add_pairs<PL_F32, size>(reinterpret_cast<const uint8_t *>(converted), some, ahead + first, sums + first);
          });
        }
      }
      for (int t = 0; t < count; t++) {
        if (columns % 2) add_last_column<F>(block + pairs * pair_bytes(F), rows[t][columns - 1], &sums[t]);
        float both[kBlockRows];
        for (int v = 0; v < kVectors; v++) store(both + v * kLanes, sums[t].even[v] + sums[t].odd[v]);
        product.write(begin + t, row, load_rows(both));
      }
    }
  }
}

}  // namespace paceline
